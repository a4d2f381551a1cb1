"""Query–title pairs as Python has them: a DataFrame, a list, or a file; and the paths that it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headroom.models.errors import ModelError
from headroom.models.frame import column_names, values_by_row, with_article
from headroom.models.quality.judgments import DOCUMENT_IDS
from headroom.models.quality.labelled import Columns, Rows
from headroom.models.rows import check_columns

if TYPE_CHECKING:
    import pandas as pd

    Row: TypeAlias = "tuple[str, str, Any] | Mapping[str, Any]"
    Data: TypeAlias = "pd.DataFrame | str | PathLike[str] | Iterable[Row]"
    """Judged pairs: a frame or another table, the path of a csv, tsv, jsonl or parquet file, or rows: tuples
    (query, title, grade), or dicts with the columns' names."""
    UnjudgedData: TypeAlias = "Data | Iterable[tuple[str, str]]"
    """Pairs that need no grade: in the same forms, or tuples (query, title)."""

FILE = "the path of a csv, tsv, jsonl or parquet file"
DIRECTORY = "the path of a directory"


def source_of(data: Data, columns: Columns, param: str = "data") -> Path | Rows:
    """Return judged pairs as `headroom.models.quality.labelled` reads them.

    columns: the names of a table's, a file's or the rows' columns. param: the argument's name, for errors and
    reports. Raises ModelError if a table lacks a column or has two of one name, if an item is neither a
    mapping nor a tuple of three, or if the data is nothing of these.
    """
    needed = {"query": columns.query, "title": columns.title, "grade": columns.grade}
    others = [name for name in (columns.position, columns.by, *DOCUMENT_IDS) if name is not None]
    return _source(data, param, needed, others, tuple(needed.values()))


def unjudged_source_of(data: UnjudgedData, columns: Columns, scores: str | None = None) -> Path | Rows:
    """Return pairs without grades as `headroom.models.quality.labelled` reads them; grades are ignored.

    scores: the column of the scores that teach; None: no column. Other arguments and errors as `source_of`.
    """
    needed = {"query": columns.query, "title": columns.title}
    if scores is not None:
        needed["scores"] = scores
    return _source(data, "data", needed, (), (columns.query, columns.title, scores or columns.grade))


def _source(
    data: Data | UnjudgedData,
    param: str,
    needed: Mapping[str, str],
    others: Sequence[str],
    in_tuple: tuple[str, ...],
) -> Path | Rows:
    """Return pairs as the readers take them.

    needed: the columns that must be there, by the argument that names them. others: those that are read if
    they are there. in_tuple: what the items of a tuple are; those that are not needed may be missing.
    """
    if isinstance(data, str | PathLike):
        return Path(data)
    names = list(needed.values())
    present = column_names(data)
    if present is not None:
        for argument, name in needed.items():
            if name not in present:
                raise ModelError(
                    f"{param} has no column {name!r}; found {', '.join(map(repr, present[:10])) or 'none'}; "
                    f"name yours, as in {argument}='…'"
                )
        wanted = list(dict.fromkeys((*names, *(name for name in others if name in present))))
        check_columns(param, [name for name in present if name in wanted], ())
        return Rows(param, [dict(zip(wanted, row, strict=True)) for row in values_by_row(data, wanted)])
    if not isinstance(data, Iterable) or isinstance(data, Mapping | set | frozenset):
        raise ModelError(
            f"{param}: {with_article(data)} is no data; give a DataFrame, {FILE}, or ({', '.join(needed)}) "
            "tuples or dicts"
        )
    shape = f"({', '.join(needed)})"
    return Rows(
        param, [_row(f"{param}[{index}]", item, names, in_tuple, shape) for index, item in enumerate(data)]
    )


def _row(
    where: str, item: object, names: Sequence[str], in_tuple: Sequence[str], shape: str
) -> Mapping[str, Any]:
    """Return an item of the pairs by its columns. Raises ModelError, which begins with `where`."""
    if isinstance(item, Mapping):
        if missing := [name for name in names if name not in item]:
            found = ", ".join(map(repr, list(item)[:10])) or "none"
            raise ModelError(f"{where} has no {missing[0]!r}; found {found}")
        return item
    is_tuple = hasattr(item, "__len__") and not isinstance(item, str | set | frozenset)
    if not is_tuple or not len(names) <= len(cast(Sequence[Any], item)) <= len(in_tuple):
        raise ModelError(f"{where}: {item!r:.60} is not a tuple {shape}")
    return dict(zip(in_tuple, cast(Iterable[Any], item), strict=False))


def path_of(param: str, value: object, wanted: str = FILE) -> Path:
    """Return the path that an argument names. param: the argument's name; wanted: what it takes, for errors.

    Raises ModelError if the value is no path.
    """
    if not isinstance(value, str | PathLike):
        raise ModelError(f"{param}: {with_article(value)} is no path; give {wanted}")
    return Path(value)
