"""Tells checkpoints apart by what is in their files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(directory: Path) -> str:
    """Return the SHA-256 of a checkpoint's files, in hexadecimal: weights, config and tokenizer."""
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.name != "metrics.json":
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()
