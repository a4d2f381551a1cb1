"""Writes dist/, all that a version is installed from, and tags the commit: `make release`.

The version is pyproject.toml's. Its notes are a section of CHANGELOG.md, and the chart has the same version.
The commit is tagged, and never pushed, if nothing in the tree is changed and the tag does not exist.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from headroom.models.ops.kernel_build import LEVELS, build_all
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


def version() -> str:
    """Return the version. Raises SystemExit if the chart has another."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    if {chart["version"], chart["appVersion"]} != {found}:
        raise SystemExit(f"{CHART}/Chart.yaml is not of version {found}, which pyproject.toml names")
    return found


def notes(number: str) -> str:
    """Return the version's section of CHANGELOG.md. Raises SystemExit if there is none."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    section = re.search(rf"^## {re.escape(number)}\b.*?(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section {number}")
    return section[0].strip() + "\n"


def make_wheel(dist: Path) -> Path:
    """Write the wheel, with the kernels of each machine that a compiler is here for, and return its path."""
    for level, failure in build_all(LEVELS).items():
        if failure:
            print(f"the wheel lacks the kernels for {level}: {failure}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", dist, ROOT], check=True)
    (wheel,) = dist.glob("headroom-*.whl")
    return wheel


def make_chart(dist: Path) -> Path:
    """Write the chart's package by Helm, and return its path."""
    subprocess.run([environments.python("deploy"), "-c", HELM, CHART, dist], check=True)
    (package,) = dist.glob("headroom-*.tgz")
    return package


def make_image(dist: Path, number: str) -> None:
    """Build the CPU image and write it as an archive that `docker load` takes."""
    engine = engine_here()
    build(engine, [])
    name = f"docker.io/library/headroom:{number}-cpu"  # which Docker calls headroom:…
    engine("tag", IMAGE, name)
    archive = dist / f"headroom-{number}-cpu.tar"
    engine("save", "--output", str(archive), name)
    subprocess.run(["gzip", "-1", archive], check=True)


def tag(number: str) -> str:
    """Tag the commit; return what was done, or why nothing was."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    name = f"v{number}"
    if git("tag", "--list", name):
        return f"{name} is tagged already, at {git('rev-parse', '--short', name)}"
    if git("status", "--porcelain"):
        return f"not tagged {name}: something in the tree is changed"
    git("tag", "--annotate", name, "--message", f"headroom {number}")
    return f"tagged {name}; git push origin {name} publishes the tag"


def main() -> None:
    """Write everything, and say how large it is."""
    number, dist = version(), ROOT / "dist"
    text = notes(number)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    (dist / f"headroom-{number}-notes.md").write_text(text, "utf-8")
    shutil.copy(ROOT / "runs" / "sbom.json", dist / f"headroom-{number}.cdx.json")
    make_wheel(dist)
    make_chart(dist)
    make_image(dist, number)
    files = sorted(dist.iterdir())
    lines = []
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.name}\n")
        print(f"{file.stat().st_size / 1e6:10,.1f} MB  {file.relative_to(ROOT)}")
    (dist / "SHA256SUMS").write_text("".join(lines), "utf-8")
    print(tag(number))


if __name__ == "__main__":
    main()
