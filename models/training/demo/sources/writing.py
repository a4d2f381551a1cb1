"""Writes files whole or not at all."""

import gzip
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name first, so that a killed run never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write gzipped UTF-8 lines."""
    text = "".join(f"{line}\n" for line in lines)
    write_whole(path, gzip.compress(text.encode(), mtime=0))
