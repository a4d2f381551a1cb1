"""Reads labelled query–title pairs from csv, tsv, jsonl and parquet files."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from models.errors import ModelError, how_to_install, reading_problem
from models.files import check_regular
from models.quality.formats import csv_problem, format_of

COLUMNS = ("query", "title", "grade")
FORMATS = "csv, tsv, jsonl (each also .gz) and parquet"


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair with its grade. Grades count from 0, the least relevant."""

    query: str
    title: str
    grade: int


def read_labelled(path: Path, *, grades: int) -> list[LabelledPair]:
    """Return the pairs of a file with the columns (or keys) query, title and grade; others are ignored.

    grades: the number of grades; a grade is a whole number from 0 to grades − 1.
    Raises ModelError, which names the file, the line (in parquet the row, from 1) and says what is wrong.
    """
    return list(iter_labelled(path, grades=grades))


def iter_labelled(path: Path, *, grades: int) -> Iterator[LabelledPair]:
    """Yield the pairs of `read_labelled` one at a time: the file may be larger than memory."""
    row = None
    for row in _rows(path):
        yield _pair(row, grades)
    if row is None:
        raise ModelError(f"{path} holds no pairs")


def query_key(query: str) -> str:
    """Return a text that is the same for queries that differ only in capitals and spaces."""
    return " ".join(query.casefold().split())


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (query, title) pairs of a file in one of the same formats, with or without grades.

    Raises ModelError as `read_labelled` does.
    """
    pairs = [_texts(row, COLUMNS[:2]) for row in _rows(path)]
    if not pairs:
        raise ModelError(f"{path} holds no pairs")
    return pairs


class _Row(NamedTuple):
    """One row of a file. values: by column. place: the file and line, for errors."""

    values: Mapping[Any, Any]
    place: str


def _pair(row: _Row, grades: int) -> LabelledPair:
    query, title = _texts(row, COLUMNS)
    grade = row.values["grade"]
    number = _grade(grade)
    if number is None or not 0 <= number < grades:
        raise ModelError(f"{row.place}: grade {grade!r} is not a whole number from 0 to {grades - 1}")
    return LabelledPair(query, title, number)


def _texts(row: _Row, columns: Sequence[str]) -> tuple[str, str]:
    for column in columns:
        if row.values.get(column) is None:
            needed = " and ".join((", ".join(columns[:-1]), columns[-1]))
            present = _listed([name for name, value in row.values.items() if name and value is not None])
            raise ModelError(f"{row.place}: there is no {column}; found {present}; each row needs {needed}")
    query, title = row.values["query"], row.values["title"]
    if not isinstance(query, str) or not isinstance(title, str) or not query.strip():
        raise ModelError(f"{row.place}: query and title must be text, and the query not blank")
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


def _rows(path: Path) -> Iterator[_Row]:
    try:
        check_regular(path)
    except OSError as error:
        raise ModelError(reading_problem(path, error)) from None
    found = format_of(path.name)
    if found is None or found.compression == "zst":
        ending = path.suffix or "without an ending"
        raise ModelError(f"{path}: the format {ending} is not known; use {FORMATS}")
    if found.kind == "parquet":
        yield from _parquet(path)
        return
    try:
        with _open(path, zipped=found.compression == "gz") as stream:
            if found.kind == "jsonl":
                yield from _jsonl(path, stream)
            else:
                yield from _csv(path, stream, "," if found.kind == "csv" else "\t")
    except (UnicodeDecodeError, OSError, EOFError) as error:
        raise ModelError(reading_problem(path, error)) from None


def _open(path: Path, *, zipped: bool) -> IO[str]:
    if zipped:
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv(path: Path, stream: IO[str], delimiter: str) -> Iterator[_Row]:
    reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
    try:
        names = list(reader.fieldnames or ())
    except csv.Error as error:
        raise ModelError(f"{path}, line 1: {csv_problem(error)}") from None
    if names and not {"query", "title"} <= set(names):
        missing = " and ".join(name for name in COLUMNS[:2] if name not in names)
        raise ModelError(
            f"{path}, line {reader.line_num}: there is no column {missing}; found {_listed(names)}; the "
            "first line names the columns: query, title and, where grades are wanted, grade"
        )
    before = reader.line_num
    try:
        for values in reader:
            yield _Row(values, f"{path}, line {before + 1}")  # a quoted text may span several lines
            before = reader.line_num
    except csv.Error as error:
        raise ModelError(f"{path}, line {before + 1}: {csv_problem(error)}") from None


def _jsonl(path: Path, stream: IO[str]) -> Iterator[_Row]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                reason = f"not JSON ({error.msg} at column {error.pos + 1})"
                raise ModelError(f"{path}, line {number}: {reason}") from None
            if not isinstance(row, dict):
                raise ModelError(f"{path}, line {number}: not a JSON object")
            yield _Row(row, f"{path}, line {number}")


def _parquet(path: Path) -> Iterator[_Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ModelError(f"{path}: parquet needs pyarrow: {how_to_install('bulk')}") from None
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if not {"query", "title"} <= set(names):
            raise ModelError(f"{path}: there are no columns query and title; found {_listed(names)}")
        numbers = itertools.count(1)
        for batch in file.iter_batches(columns=[name for name in COLUMNS if name in names]):
            for values in batch.to_pylist():
                yield _Row(values, f"{path}, row {next(numbers)}")
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ModelError(f"{path} cannot be read: {error}") from None
