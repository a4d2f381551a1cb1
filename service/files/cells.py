"""Writes values as cells of text files."""

from __future__ import annotations

import math
from typing import Any

import orjson


def cell(value: Any) -> str:
    """Return a value as a cell of csv: text as it is, "" for None, numbers and anything else as JSON.

    nan, inf and -inf, which JSON does not have, are these words.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=str).decode()
    return text[1:-1] if text.startswith('"') else text  # dates
