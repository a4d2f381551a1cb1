"""Tells checkpoints apart by what is in their files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from models.checkpoint.hub_files import weight_files

_MODULES = "[0-9]*_*"
"""Pattern of the folders of a sentence-transformers model's modules."""


def digest_of(directory: Path) -> str:
    """Return the SHA-256 of a checkpoint's files, in hexadecimal: weights, config, tokenizer and modules.

    Stored masks do not count.
    """
    digest = hashlib.sha256()
    folders = {directory, *directory.glob(_MODULES), *(file.parent for file in _weights(directory))}
    for file in sorted(file for folder in folders if folder.is_dir() for file in folder.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.name != "metrics.json":
            digest.update(file.relative_to(directory).as_posix().encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()


def bytes_of_weights(directory: Path) -> int:
    """Return the bytes of the files that a checkpoint's weights are loaded from."""
    return sum(file.stat().st_size for file in _weights(directory))


def _weights(directory: Path) -> list[Path]:
    names = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
    return [file for name in weight_files(directory, names) if (file := directory / name).is_file()]
