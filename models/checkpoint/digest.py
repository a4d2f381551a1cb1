"""Tells checkpoints apart by what is in their files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from models.checkpoint.hub_files import DESCRIPTION, module_folders, weight_files


def digest_of(directory: Path, *, masks: bool = False) -> str:
    """Return the SHA-256 of the files that a checkpoint is loaded from, in hexadecimal: weights, config,
    tokenizer and modules.

    masks: the stored masks count too. Other files that lie in the directory never do.
    """
    digest = hashlib.sha256()
    described = {directory / name for name in DESCRIPTION if "/" not in name and name != "metrics.json"}
    of_modules = {directory / folder / "config.json" for folder in module_folders(directory)}
    stored = set((directory / "masks").glob("*.json")) if masks else set()
    for file in sorted(described | of_modules | stored | set(weights_of(directory))):
        if file.is_file():
            digest.update(file.relative_to(directory).as_posix().encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()


def bytes_of_weights(directory: Path) -> int:
    """Return the bytes of the files that a checkpoint's weights are loaded from."""
    return sum(file.stat().st_size for file in weights_of(directory))


def weights_of(directory: Path) -> list[Path]:
    """Return the files that a checkpoint's weights are loaded from."""
    folders = ["", *module_folders(directory)]
    names = [
        f"{folder}{file.name}"
        for folder in folders
        if (directory / folder).is_dir()
        for file in (directory / folder).iterdir()
    ]
    return [file for name in weight_files(directory, names) if (file := directory / name).is_file()]
