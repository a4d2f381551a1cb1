"""The formats of input and output files, told by their names."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from models.errors import ModelError

KINDS = ("csv", "tsv", "jsonl", "parquet")
COMPRESSIONS = ("gz", "zst")
KNOWN = "csv, tsv and jsonl (each also .gz or .zst) and parquet"


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file. kind: one of KINDS. compression: "gz", "zst" or "" for none."""

    kind: str
    compression: str = ""

    @property
    def needs_pyarrow(self) -> bool:
        """Return whether only pyarrow can read and write it."""
        return self.kind == "parquet" or self.compression == "zst"


def format_of(name: str) -> Format | None:
    """Return the format that a file's name ends in, or None if it is not known."""
    parts = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    compression = parts.pop() if parts and parts[-1] in COMPRESSIONS else ""
    kind = parts[-1] if parts else ""
    if kind not in KINDS or (kind == "parquet" and compression):
        return None
    return Format(kind, compression)


def known_format(name: str) -> Format:
    """Return the format that a file's name ends in. Raises ModelError if it is not known or not installed."""
    found = format_of(name)
    if found is None:
        raise ModelError(f"{name}: the name ends in no known format; use {KNOWN}")
    if found.needs_pyarrow:
        require_pyarrow(f"{name}: {'parquet' if found.kind == 'parquet' else 'zst'}")
    return found


def require_pyarrow(what: str) -> None:
    """Raise ModelError, which says that `what` needs pyarrow, if it is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ModelError(f"{what} needs pyarrow; pip install 'headroom[bulk]'")
