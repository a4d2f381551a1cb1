"""Reads labelled query–title pairs from csv, tsv, jsonl and parquet files."""

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from models.errors import ModelError, reading_problem
from models.files import check_regular

OPEN_QUOTE = "a quote that never closes"

ESCI = {
    4: {"irrelevant": 0, "complement": 1, "substitute": 2, "exact": 3},
    5: {"irrelevant": 0, "complement": 2, "substitute": 3, "exact": 4},
}
"""The grades of Amazon's ESCI data by the number of grades; files name them by these words or their first
letters. With five, as the shipped model has them, none is grade 1. https://arxiv.org/abs/2206.06588"""

_Row = tuple[str, Mapping[Any, Any]]
"""The file and line of a row, for errors, and its values by column."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file.

    kind: csv, tsv, jsonl or parquet. compression: gz, zst or "". delimiter: between the cells of csv and tsv.
    """

    kind: str
    compression: str = ""
    delimiter: str = ","


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
    names = {name: grade for word, grade in ESCI.get(grades, {}).items() for name in (word, word[0])}
    words = [label.strip().casefold() for label in labels]
    names |= {word: grade for grade, word in enumerate(words) if not word.isdigit()}
    names |= {str(grade): grade for grade in range(grades)}
    for place, row in _rows(path, columns):
        query, title = _texts(place, row, columns, (columns.query, columns.title, columns.grade))
        value = row[columns.grade]
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        grade = names.get(str(whole).strip().casefold())
        if grade is None:
            others = f" or one of {', '.join(labels)}" if labels else ""
            raise ModelError(
                f"{place}: {columns.grade} {value!r} is not a whole number from 0 to {grades - 1}{others}"
            )
        yield LabelledPair(query, title, grade)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (query, title) pairs of a file in one of the same formats, with or without grades.

    Raises ModelError as `read_labelled` does.
    """
    return [_texts(place, row, DEFAULT, ("query", "title")) for place, row in _rows(path, DEFAULT)]


def query_key(query: str) -> str:
    """Return a text that is the same for queries that differ only in capitals and spaces."""
    return " ".join(query.casefold().split())


def format_of(name: str, delimiter: str = ",") -> Format | None:
    """Return the format that a file's name ends in, or None if it is not known. delimiter: of csv."""
    parts = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    compression = parts.pop() if parts and parts[-1] in ("gz", "zst") else ""
    kind = parts[-1] if parts else ""
    if kind not in ("csv", "tsv", "jsonl", "parquet") or (kind == "parquet" and compression):
        return None
    return Format(kind, compression, "\t" if kind == "tsv" else delimiter)


def csv_problem(error: csv.Error) -> str:
    """Return what is wrong with a row of csv or tsv, in words that name it in the file."""
    text = str(error)
    if text == "unexpected end of data":
        return OPEN_QUOTE
    if "expected after" in text:
        return "text after a closing quote: another quote is missing, or one in the text is not doubled"
    if text.startswith("new-line character"):
        return "a carriage return outside of quotes"
    return text


def _texts(place: str, row: Mapping[Any, Any], names: Columns, needed: Sequence[str]) -> tuple[str, str]:
    """Return query and title of a row that has a value in each of the needed columns."""
    for column in needed:
        if row.get(column) is None:
            present = [repr(str(name)[:40]) for name, value in row.items() if name and value is not None]
            found, all_needed = ", ".join(present[:10]) or "nothing", ", ".join(needed[:-1])
            raise ModelError(
                f"{place}: there is no {column}; found {found}; each row needs {all_needed} and {needed[-1]}"
            )
    query, title = row[names.query], row[names.title]
    if not isinstance(query, str) or not isinstance(title, str) or not query.strip():
        raise ModelError(
            f"{place}: {names.query} and {names.title} must be text, and the {names.query} not blank"
        )
    return query, title


def _rows(path: Path, columns: Columns) -> Iterator[_Row]:
    """Yield the rows of a file, at least one."""
    row = None
    try:
        check_regular(path)
        file_format = format_of(path.name, columns.delimiter)
        if file_format is None or file_format.compression == "zst":
            ending = path.suffix or "without an ending"
            known = "csv, tsv or jsonl (each also .gz), or parquet"
            raise ModelError(f"{path}: the format {ending} is not known; use {known}")
        for row in _read(path, file_format, columns):
            yield row
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(path, error)) from None
    if row is None:
        raise ModelError(f"{path} holds no pairs")


def _read(path: Path, file_format: Format, columns: Columns) -> Iterator[_Row]:
    if file_format.kind == "parquet":
        yield from _parquet(path, columns)
        return
    opened = gzip.open if file_format.compression else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
        if file_format.kind == "jsonl":
            yield from _jsonl(path, stream)
        else:
            yield from _csv(path, stream, file_format.delimiter)


def _csv(path: Path, stream: IO[str], delimiter: str) -> Iterator[_Row]:
    reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
    before = 0
    try:
        _ = reader.fieldnames  # reads the first line
        before = reader.line_num
        for values in reader:
            yield f"{path}, line {before + 1}", values  # a quoted text may span several lines
            before = reader.line_num
    except csv.Error as error:
        raise ModelError(f"{path}, line {before + 1}: {csv_problem(error)}") from None


def _jsonl(path: Path, stream: IO[str]) -> Iterator[_Row]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ModelError(f"{place}: not JSON ({error.msg} at column {error.pos + 1})") from None
            if not isinstance(row, dict):
                raise ModelError(f"{place}: not a JSON object")
            yield place, row


def _parquet(path: Path, columns: Columns) -> Iterator[_Row]:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    needed = (columns.query, columns.title, columns.grade)
    read = [name for name in file.schema_arrow.names if name in needed]
    rows = (row for batch in file.iter_batches(columns=read or None) for row in batch.to_pylist())
    for number, values in enumerate(rows, start=1):
        yield f"{path}, row {number}", values
