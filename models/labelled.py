"""Labelled query–title pairs, read from the files that people have: csv, tsv, jsonl, parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from models.errors import ModelError

COLUMNS = ("query", "title", "grade")
FORMATS = "csv, tsv, jsonl (each also .gz) and parquet"


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair with its grade, counted from 0, the least relevant."""

    query: str
    title: str
    grade: int


def read_labelled(path: Path, *, grades: int) -> list[LabelledPair]:
    """The pairs of a file with the columns (or keys) query, title and grade; others are ignored.

    grades: how many there are; a grade is a whole number from 0 to grades − 1.
    Raises ModelError naming the file, the row (counted from 1, after a header) and what is wrong with it.
    """
    return list(iter_labelled(path, grades=grades))


def iter_labelled(path: Path, *, grades: int) -> Iterator[LabelledPair]:
    """The same, one at a time: the file may be larger than memory."""
    number = 0
    for number, row in enumerate(_rows(path), start=1):
        yield _pair(row, f"{path}, row {number}", grades)
    if not number:
        raise ModelError(f"{path} holds no pairs")


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The (query, title) pairs of a file in one of the same formats, grades or not.

    Raises ModelError as `read_labelled` does.
    """
    pairs = [_texts(row, f"{path}, row {number}", COLUMNS[:2]) for number, row in enumerate(_rows(path), 1)]
    if not pairs:
        raise ModelError(f"{path} holds no pairs")
    return pairs


def _pair(row: Mapping[str, Any], place: str, grades: int) -> LabelledPair:
    query, title = _texts(row, place, COLUMNS)
    number = _grade(row["grade"])
    if number is None or not 0 <= number < grades:
        raise ModelError(f"{place}: grade {row['grade']!r} is not a whole number from 0 to {grades - 1}")
    return LabelledPair(query, title, number)


def _texts(row: Mapping[str, Any], place: str, columns: Sequence[str]) -> tuple[str, str]:
    for column in columns:
        if row.get(column) is None:
            needed = " and ".join((", ".join(columns[:-1]), columns[-1]))
            raise ModelError(f"{place}: there is no {column}; each row needs {needed}")
    query, title = row["query"], row["title"]
    if not isinstance(query, str) or not isinstance(title, str) or not query.strip():
        raise ModelError(f"{place}: query and title must be text, and the query not blank")
    return query, title


def _grade(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    suffixes = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    kind = suffixes[0] if suffixes else ""
    if not path.is_file():
        raise ModelError(f"{path} does not exist")
    if kind == ".parquet":
        yield from _parquet(path)
    elif kind in (".csv", ".tsv", ".jsonl"):
        try:
            with _open(path) as stream:
                if kind == ".jsonl":
                    yield from _jsonl(path, stream)
                else:
                    yield from csv.DictReader(stream, delimiter="," if kind == ".csv" else "\t", strict=True)
        except (UnicodeDecodeError, OSError, EOFError, csv.Error) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    else:
        raise ModelError(f"{path}: the format {kind or 'without an ending'} is not known; use {FORMATS}")


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _jsonl(path: Path, stream: IO[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ModelError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ModelError(f"{path}, line {number}: not a JSON object")
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ModelError(f"{path}: parquet needs pyarrow; pip install 'headroom[bulk]'") from None
    try:
        file = parquet.ParquetFile(path)
        present = set(file.schema_arrow.names)
        for batch in file.iter_batches(columns=[name for name in COLUMNS if name in present]):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ModelError(f"{path} cannot be read: {error}") from None
