"""Reads labelled query–title pairs from csv, tsv, jsonl and parquet files."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headroom.models.errors import ModelError, reading_problem
from headroom.models.files import check_regular
from headroom.models.rows import known_format, open_text, parquet_rows, problem_of, text_rows

ESCI = {
    4: {"irrelevant": 0, "complement": 1, "substitute": 2, "exact": 3},
    5: {"irrelevant": 0, "complement": 2, "substitute": 3, "exact": 4},
}
"""The grades of Amazon's ESCI data by the number of grades; files name them by these words or their first
letters. With five, as the shipped model has them, none is grade 1. https://arxiv.org/abs/2206.06588"""


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
    grade_of = _grades_by_name(grades, labels)
    for where, values in _read(path, columns, (columns.grade,)):
        value = values[columns.grade]
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        grade = grade_of.get(str(whole).strip().casefold())
        if grade is None:
            others = f" or one of {', '.join(labels)}" if labels else ""
            raise ModelError(
                f"{where}: {columns.grade} {value!r} is not a whole number from 0 to {grades - 1}{others}"
            )
        yield LabelledPair(values[columns.query], values[columns.title], grade)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (query, title) pairs of a file in one of the same formats, with or without grades.

    Raises ModelError as `read_labelled` does.
    """
    return [(values["query"], values["title"]) for _, values in _read(path, DEFAULT)]


def iter_rows(
    path: Path, columns: Columns, others: Sequence[str] = ()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each row of a file is, for errors, and its values: query, title and `others` at least.

    Raises ModelError as `read_labelled` does.
    """
    return _read(path, columns, others)


def query_key(query: str) -> str:
    """Return a text that is the same for queries that differ only in capitals and spaces."""
    return " ".join(query.casefold().split())


def digest(query: str) -> bytes:
    """Return what queries are sorted by before they are split: every run splits them alike."""
    return hashlib.sha256(query.encode()).digest()


def _grades_by_name(grades: int, labels: Sequence[str]) -> dict[str, int]:
    """Return the grade of each word that a file may write for it. A number is a number, also as a label."""
    names = {}
    for word, grade in ESCI.get(grades, {}).items():
        names[word] = grade
        names[word[0]] = grade
    for grade, label in enumerate(labels):
        if not label.strip().isdigit():
            names[label.strip().casefold()] = grade
    return names | {str(grade): grade for grade in range(grades)}


def _read(
    path: Path, columns: Columns, others: Sequence[str] = ()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each row is, for errors, and its values: query, title and `others` at least."""
    import pyarrow

    name = str(path)
    texts = (columns.query, columns.title)
    row = None
    try:
        check_regular(path)
        file_format = known_format(name, columns.delimiter)
        with pyarrow.OSFile(name) as file:
            if file_format.kind == "parquet":
                unit = "row"
                rows = parquet_rows(name, file, texts, others)
            else:
                unit = "line"
                stream = open_text(file, file_format.compression)
                _, rows = text_rows(name, stream, file_format, (*texts, *others))
            for row in rows:
                where = f"{name}, {unit} {row.line}"
                if problem := row.problem or problem_of(row.values, *texts, others):
                    raise ModelError(f"{where}: {problem}")
                yield where, row.values
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(path, error)) from None
    if row is None:
        raise ModelError(f"{path} holds no pairs")
