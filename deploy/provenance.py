"""Says what a release was made from, and by whom it was signed.

The statement is in-toto's (https://in-toto.io/Statement/v1) with SLSA's provenance
(https://slsa.dev/spec/v1.0/provenance): the digests of all files and of the image, the commit, and the files
that decided the versions. `deploy/sign.py` signs it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.bill import digest
from headroom.version import ROOT
from tests.clients import environments

SUMS = "SHA256SUMS"
DECIDING = ("constraints.txt", "pyproject.toml", "deploy/docker/Dockerfile")
"""The files that decide which versions are inside."""


@dataclass(frozen=True)
class Image:
    """The image that was built."""

    name: str
    id: str
    """SHA-256 of its configuration, in hex digits."""


def sums(files: list[Path]) -> str:
    """Return the files' digests as `sha256sum --check` reads them."""
    return "".join(f"{digest(file)}  {file.name}\n" for file in files)


def statement(files: list[Path], number: str, image: Image, started: datetime) -> dict[str, Any]:
    """Return in-toto's statement on a version's files and image. started: when the build began, in UTC."""
    subjects = [{"name": file.name, "digest": {"sha256": digest(file)}} for file in files]
    subjects.append({"name": image.name, "digest": {"sha256": image.id}})
    made_from = [{"name": name, "digest": {"sha256": digest(ROOT / name)}} for name in DECIDING]
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:headroom:make-release:1",
                "externalParameters": {"command": "make release", "version": number},
                "internalParameters": {"python": python},
                "resolvedDependencies": [*_commit(), *made_from],
            },
            "runDetails": {
                "builder": {"id": "urn:headroom:local"},
                "metadata": {"startedOn": _time(started), "finishedOn": _time(datetime.now(UTC))},
            },
        },
    }


def sign(key: Path, *files: Path) -> None:
    """Sign the statement and the digests; without files, only see whether the key can sign.

    Raises SystemExit if it cannot.
    """
    python = environments.python("deploy")
    if subprocess.run([python, ROOT / "deploy" / "sign.py", key, *files], check=False).returncode:
        raise SystemExit(1)  # it has said why


def _commit() -> list[dict[str, Any]]:
    """Return the checked-out commit; nothing if this is no checkout."""
    if not (ROOT / ".git").exists():
        return []
    commit: dict[str, Any] = {"name": "headroom", "digest": {"gitCommit": _git("rev-parse", "HEAD")}}
    if _git("status", "--porcelain"):
        commit["annotations"] = {"changed": True}
    return [commit]


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
