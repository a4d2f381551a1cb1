"""The formats that a job reads and writes, and what they need."""

from __future__ import annotations

import importlib.util

from models.errors import ModelError, how_to_install
from models.quality.formats import Format, format_of

KNOWN = "csv, tsv and jsonl (each also .gz or .zst) and parquet"


def known_format(name: str, delimiter: str) -> Format:
    """Return the format that a file's name ends in. delimiter: of csv.

    Raises ModelError if the format is not known or not installed.
    """
    file_format = format_of(name, delimiter)
    if file_format is None:
        raise ModelError(f"{name}: the name ends in no known format; use {KNOWN}")
    if file_format.needs_pyarrow:
        require_pyarrow(f"{name}: {'parquet' if file_format.kind == 'parquet' else 'zst'}")
    return file_format


def require_pyarrow(what: str) -> None:
    """Raise ModelError, which says that `what` needs pyarrow, if it is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ModelError(f"{what} needs pyarrow: {how_to_install('bulk')}")
