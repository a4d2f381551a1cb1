"""A new checkpoint's directory: checks made before torch is imported, a draft, and the last step."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from models.checkpoint.config import ModelConfig
from models.errors import ModelError


def check_empty(target: Path) -> None:
    """Raise ModelError if the directory to write is not empty, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not empty; name a new directory")


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield the path of a draft that becomes `target` when the block ends, and is removed if it fails."""
    parent = target if target.is_dir() else target.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.unfinished-", dir=parent) as directory:
        draft = Path(directory) / "checkpoint"
        yield draft
        put_in_place(draft, target)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a finished directory its name. If an empty directory has it, that one gets the content."""
    if not target.exists():
        draft.rename(target)
        return
    for file in draft.iterdir():
        shutil.move(file, target / file.name)


def readable_as_usual(path: Path) -> None:
    """Give a file, or all in a directory, the mode that the umask asks for; safetensors writes 0600."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    for each in (path, *path.rglob("*")):
        each.chmod((0o777 if each.is_dir() else 0o666) & ~umask)


def check_can_be_quantized(source: Path, config: ModelConfig) -> None:
    """Raise ModelError if the checkpoint is quantized already."""
    if config.int8:
        raise ModelError(f"{source} is quantized already; name the float checkpoint it was made from")
