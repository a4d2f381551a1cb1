"""Writes dist/, all that a version is installed from: `make release`.

python -m deploy.release [VERSION] [--key KEY]

It makes the commit a release first (`deploy.tagging`). If that cannot be, it says why, and dist/ holds a
build from between two releases, such as 0.3.0.dev7+g1a2b3c4d. Chart, image and notes have the same version.
With a private key, it signs what it wrote (deploy/sign.py). With VERSION or KEY, only a release will do.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from deploy import bill, provenance, tagging
from headroom.models.ops.kernel_build import LEVELS, build_all
from headroom.version import version
from tests.clients import environments
from tests.deploy.build_image import build, engine_here, tag

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


def make_image(dist: Path, number: str) -> provenance.Image:
    """Build the CPU image; write it as an archive that `docker load` takes, its bill and others' licences."""
    engine = engine_here()
    identity = build(engine, [])
    name = f"docker.io/library/{tag(number)}"  # which Docker calls headroom:…
    engine("tag", identity, name)
    archive = dist / f"headroom-{number}-cpu.tar"
    engine("save", "--output", str(archive), name)
    bill.write_image_bill(archive, number, dist / f"headroom-{number}-cpu.cdx.json")
    subprocess.run(["gzip", "-1", archive], check=True)
    show = ["run", "--rm", "--network", "none", "--entrypoint", "cat", *engine.run_options]
    notices = engine(*show, identity, "/app/THIRD-PARTY-NOTICES.txt")
    (dist / f"headroom-{number}-cpu-third-party.txt").write_text(notices + "\n", "utf-8")
    return provenance.Image(tag(number), identity.removeprefix("sha256:"))


def seal(dist: Path, number: str, image: provenance.Image, started: datetime, key: Path | None) -> None:
    """Write the statement of provenance and the digests of all files; with a key, sign both."""
    statement = dist / f"headroom-{number}.provenance.json"
    about = provenance.statement(sorted(dist.iterdir()), number, image, started)
    statement.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    sums = dist / provenance.SUMS
    sums.write_text(provenance.sums(sorted(dist.iterdir())), "utf-8")
    if key is not None:
        provenance.sign(key, statement, sums)


def _check_still_clean() -> None:
    """Raise SystemExit if the tree changed while a release was built from it."""
    try:
        tagging.check_clean()
    except tagging.NotReleased as error:
        raise SystemExit(f"dist/ is no release: {error} since the build began") from None


def main() -> None:
    """Write everything, and say how large it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--key", type=Path)
    given = parser.parse_args()
    started = datetime.now(UTC)
    if given.key is not None:
        provenance.sign(given.key)  # before the long part
    tagged = tagging.tag(given.version, required=given.key is not None)
    print(tagged)
    number = version()
    dist = ROOT / "dist"
    text = tagging.notes(number)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    (dist / f"headroom-{number}-notes.md").write_text(text, "utf-8")
    packages = bill.resolve(*bill.requirements())
    bill.write(bill.wheel_bill(number, packages), dist / f"headroom-{number}.cdx.json")
    make_wheel(dist)
    make_chart(dist, number)
    image = make_image(dist, number)
    if ".dev" not in number:
        _check_still_clean()
    seal(dist, number, image, started, given.key)
    for file in sorted(dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:10,.1f} MB  {file.relative_to(ROOT)}")
    print(tagged)


if __name__ == "__main__":
    main()
