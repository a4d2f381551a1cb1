"""Reads labelled query–title pairs from csv, tsv, jsonl and parquet files."""

import csv
import gzip
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from models.errors import ModelError, reading_problem
from models.files import check_regular
from models.quality.formats import csv_problem, format_of

FORMATS = "csv, tsv or jsonl (each also .gz), or parquet"

ESCI = {4: {"i": 0, "c": 1, "s": 2, "e": 3}, 5: {"i": 0, "c": 2, "s": 3, "e": 4}}
"""The grade of each letter of Amazon's ESCI data (irrelevant, complement, substitute, exact), by the number
of grades. With five, as the shipped model has them, no letter is grade 1. https://arxiv.org/abs/2206.06588"""
_ESCI_NAMES = {"irrelevant": "i", "complement": "c", "substitute": "s", "exact": "e"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a file's columns (or keys), and the character between the cells of csv."""

    query: str = "query"
    title: str = "title"
    grade: str = "grade"
    delimiter: str = ","


DEFAULT = Columns()


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair with its grade. Grades count from 0, the least relevant."""

    query: str
    title: str
    grade: int


def read_labelled(
    path: Path, *, grades: int, labels: Sequence[str] = (), columns: Columns = DEFAULT
) -> list[LabelledPair]:
    """Return the pairs of a file with columns (or keys) for query, title and grade; others are ignored.

    grades: the number of grades; a grade is a whole number from 0 to grades − 1, one of `labels`, which are
        their names, least relevant first, or with four or five grades a letter of ESCI.
    Raises ModelError, which names the file, the line (in parquet the row, from 1) and says what is wrong.
    """
    return list(iter_labelled(path, grades=grades, labels=labels, columns=columns))


def iter_labelled(
    path: Path, *, grades: int, labels: Sequence[str] = (), columns: Columns = DEFAULT
) -> Iterator[LabelledPair]:
    """Yield the pairs of `read_labelled` one at a time: the file may be larger than memory."""
    row = None
    letters = ESCI.get(grades, {})
    names = letters | {name: letters[letter] for name, letter in _ESCI_NAMES.items() if letters}
    names |= {name.strip().casefold(): grade for grade, name in enumerate(labels) if _grade(name) is None}
    for row in _rows(path, columns):
        yield _pair(row, grades, names, labels, columns)
    if row is None:
        raise ModelError(f"{path} holds no pairs")


def query_key(query: str) -> str:
    """Return a text that is the same for queries that differ only in capitals and spaces."""
    return " ".join(query.casefold().split())


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (query, title) pairs of a file in one of the same formats, with or without grades.

    Raises ModelError as `read_labelled` does.
    """
    pairs = [_texts(row, DEFAULT, ("query", "title")) for row in _rows(path, DEFAULT)]
    if not pairs:
        raise ModelError(f"{path} holds no pairs")
    return pairs


class _Row(NamedTuple):
    """One row of a file. values: by column. place: the file and line, for errors."""

    values: Mapping[Any, Any]
    place: str


def _pair(
    row: _Row, grades: int, names: Mapping[str, int], labels: Sequence[str], columns: Columns
) -> LabelledPair:
    query, title = _texts(row, columns, (columns.query, columns.title, columns.grade))
    grade = row.values[columns.grade]
    number = names.get(grade.strip().casefold()) if isinstance(grade, str) else None
    number = _grade(grade) if number is None else number
    if number is None or not 0 <= number < grades:
        others = f" or one of {', '.join(labels)}" if labels else ""
        raise ModelError(
            f"{row.place}: {columns.grade} {grade!r} is not a whole number from 0 to {grades - 1}{others}"
        )
    return LabelledPair(query, title, number)


def _texts(row: _Row, names: Columns, columns: Sequence[str]) -> tuple[str, str]:
    for column in columns:
        if row.values.get(column) is None:
            needed = " and ".join((", ".join(columns[:-1]), columns[-1]))
            present = _listed([name for name, value in row.values.items() if name and value is not None])
            raise ModelError(f"{row.place}: there is no {column}; found {present}; each row needs {needed}")
    query, title = row.values[names.query], row.values[names.title]
    if not isinstance(query, str) or not isinstance(title, str) or not query.strip():
        raise ModelError(
            f"{row.place}: {names.query} and {names.title} must be text, and the {names.query} not blank"
        )
    return query, title


def _listed(names: Sequence[object]) -> str:
    """Return column names as an error quotes them, cut short: without a header they are texts."""
    shown = [repr(name) if len(str(name)) <= 40 else repr(str(name)[:39] + "…") for name in names[:10]]
    return (", ".join(shown) + (" …" if len(names) > 10 else "")) or "nothing"


def _grade(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _rows(path: Path, columns: Columns) -> Iterator[_Row]:
    try:
        check_regular(path)
    except OSError as error:
        raise ModelError(reading_problem(path, error)) from None
    found = format_of(path.name, columns.delimiter)
    if found is None or found.compression == "zst":
        ending = path.suffix or "without an ending"
        raise ModelError(f"{path}: the format {ending} is not known; use {FORMATS}")
    if found.kind == "parquet":
        yield from _parquet(path, columns)
        return
    try:
        with _open(path, zipped=found.compression == "gz") as stream:
            if found.kind == "jsonl":
                yield from _jsonl(path, stream)
            else:
                yield from _csv(path, stream, found.delimiter)
    except (UnicodeDecodeError, OSError, EOFError) as error:
        raise ModelError(reading_problem(path, error)) from None


def _open(path: Path, *, zipped: bool) -> IO[str]:
    if zipped:
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv(path: Path, stream: IO[str], delimiter: str) -> Iterator[_Row]:
    reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
    before = 0
    try:
        _ = reader.fieldnames  # reads the first line
        before = reader.line_num
        for values in reader:
            yield _Row(values, f"{path}, line {before + 1}")  # a quoted text may span several lines
            before = reader.line_num
    except csv.Error as error:
        raise ModelError(f"{path}, line {before + 1}: {csv_problem(error)}") from None


def _jsonl(path: Path, stream: IO[str]) -> Iterator[_Row]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_unique)
            except json.JSONDecodeError as error:
                reason = f"not JSON ({error.msg} at column {error.pos + 1})"
                raise ModelError(f"{path}, line {number}: {reason}") from None
            except KeyError as error:
                raise ModelError(
                    f'{path}, line {number}: the key "{error.args[0]}" appears twice in one object'
                ) from None
            if not isinstance(row, dict):
                raise ModelError(f"{path}, line {number}: not a JSON object")
            yield _Row(row, f"{path}, line {number}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values. Raises KeyError with a key that is there twice."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise KeyError(key)
        values[key] = value
    return values


def _parquet(path: Path, columns: Columns) -> Iterator[_Row]:
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        read = [name for name in (columns.query, columns.title, columns.grade) if name in names]
        numbers = itertools.count(1)
        for batch in file.iter_batches(columns=read or None):
            for values in batch.to_pylist():
                yield _Row(values, f"{path}, row {next(numbers)}")
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ModelError(f"{path} cannot be read: {error}") from None
