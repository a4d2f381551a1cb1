"""The directory of a training run while it is unfinished: what it depends on, and what it ends with."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import orjson

from headroom.models.checkpoint.files import digest_of, put_in_place
from headroom.models.errors import ModelError
from headroom.models.files import Json, write_whole
from headroom.models.quality.tables import Rows

FINGERPRINT = "options.json"
"""The file that holds the fingerprint of an unfinished run."""

LOCK = "lock"
"""The file that a run locks while it is at work."""


def fingerprint_of(
    options: Mapping[str, object],
    sources: Iterable[Path | Rows | None],
    checkpoints: Iterable[Path | None],
) -> dict[str, str]:
    """Return all that a run depends on: the value of each option, and the SHA-256 of what it reads.

    options: by their names on the command line. sources: of pairs. sources, checkpoints: None is left out.
    """
    fingerprint = {name: str(value) for name, value in options.items()}
    for source in sources:
        if isinstance(source, Rows):
            fingerprint[f"content of {source}"] = source.digest
        elif source is not None:
            with source.open("rb") as stream:
                fingerprint[f"content of {source}"] = hashlib.file_digest(stream, "sha256").hexdigest()
    for directory in filter(None, checkpoints):
        fingerprint[f"content of {directory}"] = digest_of(directory)
    return fingerprint


def option_name(field: str) -> str:
    """Return how the command line names a field of options."""
    return f"--{field.replace('_', '-')}"


def check_unfinished(work: Path, fingerprint: Mapping[str, str]) -> None:
    """Raise ModelError if the directory `work` holds an unfinished run of other options or files, or what no
    run can go on from."""
    file = work / FINGERPRINT
    if not file.exists():
        others = [other.name for other in work.iterdir()] if work.exists() else []
        if any(name != LOCK and not name.startswith(FINGERPRINT) for name in others):
            raise ModelError(
                f"{work} is in the way: the run's state is kept there; move it away, or remove it"
            )
        return
    unfinished: Json = json.loads(file.read_text(encoding="utf-8"))
    for name, value in fingerprint.items():
        if unfinished.get(name) != value:
            raise ModelError(
                f"{work} holds an unfinished run with another {name}; repeat that run, or remove {work} to "
                "begin anew"
            )


@contextlib.contextmanager
def at_work(work: Path, fingerprint: Mapping[str, str]) -> Iterator[None]:
    """Keep the directory `work` for one run, which begins or goes on in it, as long as the block lasts.

    Raises ModelError if it holds an unfinished run of another kind, or if another run is at work in it.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK).open("w") as lock:
        if not _locked(lock, work):
            raise ModelError(f"another run is at work in {work}; wait for its end, or choose another --out")
        shutil.rmtree(_finished(work), ignore_errors=True)
        check_unfinished(work, fingerprint)
        write_whole(work / FINGERPRINT, json.dumps(fingerprint, indent=1).encode())
        yield


def _locked(lock: IO[str], work: Path) -> bool:
    """Lock the file for this run. Return False if another run has it, or has just ended and taken it along.

    Where the file system knows no locks, nothing is locked.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    file = work / LOCK
    return file.exists() and os.path.samestat(file.stat(), os.fstat(lock.fileno()))


def _finished(work: Path) -> Path:
    """Return the name of a finished run's directory while it is removed."""
    return work.with_name(f"{work.name}.finished")


def publish(draft: Path, out: Path, work: Path, metrics: Json) -> Json:
    """Put a checkpoint in place with its metrics.json, remove the run's directory, and return the metrics as
    that file holds them."""
    written = orjson.dumps(metrics, option=orjson.OPT_INDENT_2)  # an undefined figure becomes null
    (draft / "metrics.json").write_bytes(written + b"\n")
    put_in_place(draft, out)
    finished = _finished(work)
    work.rename(finished)  # nobody goes on from what is left if this run is killed while it removes files
    shutil.rmtree(finished)
    plain: Json = orjson.loads(written)
    return plain
