"""Writes the bills of materials (SBOM, CycloneDX) of the wheel and of the image.

python -m deploy.bill FILE

This is `make sbom`: the wheel's bill. It lists what pip installs here with the wheel and its server, each
package with its licence and the SHA-256 of its file; the page's libraries, which the wheel contains; and the
shipped model. The image's bill is Syft's: Debian's packages, Python's, and programs such as HAProxy.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from headroom.version import ROOT, version
from tests.clients import environments

VENDOR = ROOT / "service" / "page" / "vendor"
VENDORED = re.compile(r"/\* (?P<name>[\w-]+) (?P<version>[\d.]+), (?P<url>\S+), (?P<license>\S+): see")
"""The first words of a library's file in VENDOR."""

MODEL = ROOT / "models" / "default" / "model.safetensors"
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "GPLv2": "GPL-2.0-only",
}
"""SPDX's identifiers for what packages call their licences."""

Bill = dict[str, Any]


@dataclass(frozen=True)
class Package:
    """A package that pip would install; https://pip.pypa.io/en/stable/reference/installation-report/."""

    name: str
    """As pip compares names: lower case, with hyphens."""
    version: str
    sha256: str
    """Of the file that pip would take, in hex digits."""


def requirements() -> list[str | Path]:
    """Return what `resolve` takes for the wheel with its server, in the versions of constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["serve"]
    return ["--constraint", ROOT / "constraints.txt", *wanted]


def digest(file: Path) -> str:
    """Return a file's SHA-256 in hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def resolve(*options: str | Path) -> list[Package]:
    """Return what pip would install into an empty environment.

    options: of `pip install`, and requirements. Raises CalledProcessError if pip fails; it has said why.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    done = subprocess.run(
        [*pip, "--ignore-installed", "--report", "-", *options], stdout=subprocess.PIPE, text=True, check=True
    )
    packages = []
    for entry in json.loads(done.stdout)["install"]:
        about = entry["metadata"]
        digits = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        packages.append(Package(canonicalize_name(about["name"]), about["version"], digits))
    return packages


def wheel_bill(number: str, packages: list[Package]) -> Bill:
    """Return the bill of the wheel and of the packages that pip installs with it.

    Raises SystemExit if one of them is not beside this interpreter in the same version.
    """
    installed = {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions()}
    for package in packages:
        if installed.get(package.name) != package.version:
            lack = f"{package.name} {package.version}"
            raise SystemExit(f".venv is not up to date: it lacks {lack}; run: make install")
    bill = _environment_bill()
    listed = {canonicalize_name(component["name"]): component for component in bill["components"]}
    components = []
    for package in packages:
        component = listed[package.name]
        component["hashes"] = [_sha256(package.sha256)]
        component.setdefault("licenses", _declared_license(package.name))
        components.append(component)
    inside = [*_page_libraries(), _model(number)]
    root = bill["metadata"]["component"]
    root["version"] = number
    bill["components"] = components + inside
    references = {component["bom-ref"] for component in [root, *bill["components"]]}
    dependencies = [entry for entry in bill["dependencies"] if entry["ref"] in references]
    for entry in dependencies:
        entry["dependsOn"] = [name for name in entry.get("dependsOn", []) if name in references]
        if entry["ref"] == root["bom-ref"]:
            entry["dependsOn"] += [component["bom-ref"] for component in inside]
    bill["dependencies"] = dependencies
    return bill


def write(bill: Bill, file: Path) -> None:
    """Write a bill as JSON."""
    file.write_text(json.dumps(bill, indent=2) + "\n", "utf-8")


def write_image_bill(archive: Path, number: str, file: Path) -> None:
    """Write the bill of an image's archive (of `docker save`). Raises CalledProcessError if Syft fails."""
    syft = environments.python("deploy").with_name("syft")
    source = ["--source-name", "headroom", "--source-version", number]
    command = [
        syft,
        "scan",
        f"docker-archive:{archive}",
        *source,
        "--quiet",
        "--output",
        f"cyclonedx-json={file}",
    ]
    subprocess.run(command, check=True, env=os.environ | {"SYFT_CHECK_FOR_APP_UPDATE": "false"})


def _environment_bill() -> Bill:
    """Return cyclonedx-py's bill of all that is installed beside this interpreter."""
    program = environments.python("deploy").with_name("cyclonedx-py")
    options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--no-validate"]
    done = subprocess.run(
        [program, "environment", *options, sys.executable], stdout=subprocess.PIPE, text=True, check=True
    )
    bill: Bill = json.loads(done.stdout)
    return bill


def _declared_license(name: str) -> list[dict[str, Any]]:
    """Return the licence of a package whose metadata has it in words, which cyclonedx-py leaves out."""
    words = importlib.metadata.metadata(name)["License"]
    return [{"license": {"id": SPDX[words]} if words in SPDX else {"name": words}}]


def _page_libraries() -> list[dict[str, Any]]:
    heads = {file: VENDORED.match(file.read_text("utf-8")) for file in sorted(VENDOR.glob("*.js"))}
    return [
        {
            "type": "library",
            "bom-ref": f"{head['name']}@{head['version']}",
            "name": head["name"],
            "version": head["version"],
            "hashes": [_sha256(digest(file))],
            "licenses": [{"license": {"id": head["license"]}}],
            "purl": f"pkg:npm/{head['name']}@{head['version']}",
        }
        for file, head in heads.items()
        if head is not None
    ]


def _model(number: str) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": "default-model",
        "name": "headroom-default",
        "version": number,
        "hashes": [_sha256(digest(MODEL))],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }


def _sha256(digits: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digits}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    write(wheel_bill(version(), resolve(*requirements())), target)
    print(target)
