"""The directory of a training run while it is unfinished: what it depends on, and what it ends with."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from headroom.models.checkpoint.files import digest_of, put_in_place
from headroom.models.errors import ModelError
from headroom.models.files import Json, write_whole

FINGERPRINT = "options.json"
"""The file that holds the fingerprint of an unfinished run."""


def fingerprint_of(
    options: Mapping[str, object], files: Iterable[Path | None], checkpoints: Iterable[Path | None]
) -> dict[str, str]:
    """Return all that a run depends on: the value of each option, and the SHA-256 of what it reads.

    options: by their names on the command line. files, checkpoints: None is left out.
    """
    fingerprint = {name: str(value) for name, value in options.items()}
    for file in filter(None, files):
        with file.open("rb") as stream:
            fingerprint[f"content of {file}"] = hashlib.file_digest(stream, "sha256").hexdigest()
    for directory in filter(None, checkpoints):
        fingerprint[f"content of {directory}"] = digest_of(directory)
    return fingerprint


def option_name(field: str) -> str:
    """Return how the command line names a field of options."""
    return f"--{field.replace('_', '-')}"


def check_unfinished(work: Path, fingerprint: Mapping[str, str]) -> None:
    """Raise ModelError if the directory `work` holds an unfinished run of other options or files."""
    file = work / FINGERPRINT
    if not file.exists():
        return
    unfinished: Json = json.loads(file.read_text(encoding="utf-8"))
    for name, value in fingerprint.items():
        if unfinished.get(name) != value:
            raise ModelError(
                f"{work} holds an unfinished run with another {name}; repeat that run, or remove {work} to "
                "begin anew"
            )


def write_fingerprint(work: Path, fingerprint: Mapping[str, str]) -> None:
    """Say in the directory `work`, which is made, what the run depends on."""
    write_whole(work / FINGERPRINT, json.dumps(fingerprint, indent=1).encode())


def publish(draft: Path, out: Path, work: Path, metrics: Json) -> Json:
    """Put a checkpoint in place with its metrics.json, remove the run's directory, and return the metrics as
    that file holds them."""
    written = orjson.dumps(metrics, option=orjson.OPT_INDENT_2)  # an undefined figure becomes null
    (draft / "metrics.json").write_bytes(written + b"\n")
    put_in_place(draft, out)
    shutil.rmtree(work)
    plain: Json = orjson.loads(written)
    return plain
