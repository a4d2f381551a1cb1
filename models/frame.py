"""Tables as Python has them: makes those of pandas, if it is installed, and reads columns of pandas, polars,
pyarrow and datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headroom.models.errors import how_to_install

if TYPE_CHECKING:
    import pandas as pd


def frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a DataFrame of columns of equal length. Raises ModuleNotFoundError, which says how to install
    pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"to_frame() needs pandas: {how_to_install('notebook')}") from None
    return pd.DataFrame(dict(columns))


def column_names(data: object) -> list[str] | None:
    """Return the names of a table's columns; None if it is no table."""
    names = getattr(data, "column_names", None)  # of pyarrow and datasets, where `columns` are no names
    if names is None:
        names = getattr(data, "columns", None)
    if names is None or callable(names):
        return None
    return [str(name) for name in names]


def values_by_row(data: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of these columns, which the table has once each, row by row."""
    return list(zip(*(_values(data[name]) for name in names), strict=True))


def _values(column: Any) -> list[Any]:
    for method in ("to_list", "to_pylist"):
        if hasattr(column, method):
            values: list[Any] = getattr(column, method)()
            return values
    return list(column)


def with_article(value: object) -> str:
    """Return what a value is: "a DataFrame", or None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
