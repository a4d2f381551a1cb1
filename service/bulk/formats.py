"""The formats that a job reads and writes, and what they need."""

from __future__ import annotations

import importlib.util

from models.errors import ModelError
from models.quality.formats import Format, format_of

KNOWN = "csv, tsv and jsonl (each also .gz or .zst) and parquet"


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
