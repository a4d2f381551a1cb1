"""Judged pairs as Python has them: a DataFrame, a list, or a file; and the paths that it names."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import Columns, Rows
from headroom.models.rows import check_columns

if TYPE_CHECKING:
    import pandas as pd

    Data: TypeAlias = "pd.DataFrame | str | PathLike[str] | Iterable[tuple[str, str, Any]]"
    """Judged pairs: a frame, the path of a csv, tsv, jsonl or parquet file, or (query, title, grade) rows."""

FILE = "the path of a csv, tsv, jsonl or parquet file"
DIRECTORY = "the path of a directory"


def source_of(data: Data, columns: Columns, param: str = "data") -> Path | Rows:
    """Return judged pairs as `headroom.models.quality.labelled` reads them.

    columns: the names of a frame's or a file's columns. param: the argument's name, for errors and reports.
    Raises ModelError if a frame lacks a column or has two of one name, if an item is no tuple of three, or if
    the data is nothing of these.
    """
    if isinstance(data, str | PathLike):
        return Path(data)
    names = (columns.query, columns.title, columns.grade)
    if hasattr(data, "columns"):
        table: Any = data
        present = [str(name) for name in table.columns]
        for argument, name in zip(("query", "title", "grade"), names, strict=True):
            if name not in present:
                raise ModelError(
                    f"{param} has no column {name!r}; found {', '.join(map(repr, present[:10])) or 'none'}; "
                    f"name yours, as in {argument}='…'"
                )
        check_columns(param, [name for name in present if name in names], ())
        lists = [table[name].to_list() for name in names]
        return Rows(param, [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)])
    if not isinstance(data, Iterable):
        raise ModelError(
            f"{param}: {_shown(data)} is no data; give a DataFrame, {FILE}, or (query, title, grade) tuples"
        )
    rows = []
    for index, item in enumerate(data):
        if isinstance(item, str) or not hasattr(item, "__len__") or len(item) != len(names):
            raise ModelError(f"{param}[{index}]: {item!r:.60} is not a tuple (query, title, grade)")
        rows.append(dict(zip(names, item, strict=True)))
    return Rows(param, rows)


def path_of(param: str, value: object, wanted: str = FILE) -> Path:
    """Return the path that an argument names. param: the argument's name; wanted: what it takes, for errors.

    Raises ModelError if the value is no path.
    """
    if not isinstance(value, str | PathLike):
        raise ModelError(f"{param}: {_shown(value)} is no path; give {wanted}")
    return Path(value)


def _shown(value: object) -> str:
    """Return what a value is, with its article."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
