"""Writes dist/, all that a version is installed from: `make release`.

It makes the commit a release first (`deploy.tagging`). If that cannot be, it says why, and dist/ holds a
build from between two releases, such as 0.3.0.dev7+g1a2b3c4d. Chart, image and notes have the same version.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from deploy import tagging
from headroom.models.ops.kernel_build import LEVELS, build_all
from headroom.version import version
from tests.clients import environments
from tests.deploy.build_image import IMAGE, build, engine_here

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "headroom"
HELM = """
import asyncio, sys
from helm_sdkpy.actions import Configuration
from helm_sdkpy.chart import Package
asyncio.run(Package(Configuration()).run(*sys.argv[1:]))
"""


def make_wheel(dist: Path) -> Path:
    """Write the wheel, with the kernels of each machine that a compiler is here for, and return its path."""
    for level, failure in build_all(LEVELS).items():
        if failure:
            print(f"the wheel lacks the kernels for {level}: {failure}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", dist, ROOT], check=True)
    (wheel,) = dist.glob("headroom-*.whl")
    return wheel


def chart_version(number: str) -> str:
    """Return a version as Helm takes it (Semantic Versioning)."""
    return re.sub(r"\.dev(\d+)", r"-dev.\1", number)


def make_chart(dist: Path, number: str) -> Path:
    """Write the chart's package by Helm, and return its path."""
    with TemporaryDirectory() as directory:
        chart = Path(directory, CHART.name)
        shutil.copytree(CHART, chart)  # with the files that it links to
        about = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))
        about |= {"version": chart_version(number), "appVersion": number}
        (chart / "Chart.yaml").write_text(yaml.safe_dump(about, sort_keys=False), "utf-8")
        subprocess.run([environments.python("deploy"), "-c", HELM, chart, dist], check=True)
    (package,) = dist.glob("headroom-*.tgz")
    return package


def write_bill(dist: Path, number: str) -> None:
    """Write the bill of materials that `make sbom` made, with the version."""
    bill = json.loads((ROOT / "runs" / "sbom.json").read_text("utf-8"))
    bill["metadata"]["component"]["version"] = number
    (dist / f"headroom-{number}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", "utf-8")


def make_image(dist: Path, number: str) -> None:
    """Build the CPU image and write it as an archive that `docker load` takes."""
    engine = engine_here()
    build(engine, [])
    name = f"docker.io/library/headroom:{number.replace('+', '-')}-cpu"  # which Docker calls headroom:…
    engine("tag", IMAGE, name)
    archive = dist / f"headroom-{number}-cpu.tar"
    engine("save", "--output", str(archive), name)
    subprocess.run(["gzip", "-1", archive], check=True)


def main() -> None:
    """Write everything, and say how large it is."""
    tagged = tagging.tag(*sys.argv[1:])
    print(tagged)
    number = version()
    dist = ROOT / "dist"
    text = tagging.notes(number)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    (dist / f"headroom-{number}-notes.md").write_text(text, "utf-8")
    write_bill(dist, number)
    make_wheel(dist)
    make_chart(dist, number)
    make_image(dist, number)
    files = sorted(dist.iterdir())
    lines = []
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.name}\n")
        print(f"{file.stat().st_size / 1e6:10,.1f} MB  {file.relative_to(ROOT)}")
    (dist / "SHA256SUMS").write_text("".join(lines), "utf-8")
    print(tagged)


if __name__ == "__main__":
    main()
