"""Reads labelled query–title pairs from files of any kind that `judgments` knows."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headroom.models.errors import ModelError
from headroom.models.quality.judgments import DEFAULT as DEFAULT
from headroom.models.quality.judgments import Columns as Columns
from headroom.models.quality.judgments import Judgment, read_judgments
from headroom.models.quality.judgments import Rows as Rows
from headroom.models.quality.judgments import columns_of_second as columns_of_second
from headroom.models.quality.tables import opened
from headroom.models.terminal import warn_once

ESCI = {
    4: {"irrelevant": 0, "complement": 1, "substitute": 2, "exact": 3},
    5: {"irrelevant": 0, "complement": 2, "substitute": 3, "exact": 4},
}
"""The grades of Amazon's ESCI data by the number of grades; files name them by these words or their first
letters. With five, as the shipped model has them, none is grade 1; with more, they are those of four.
https://arxiv.org/abs/2206.06588"""


SAMPLE = Path(__file__).parents[1] / "commands" / "sample"
"""Links to files of data/sample, which are files in a wheel."""

HIGHEST_GRADE = 100
"""The highest grade of files that judge a one-label model, or models with different numbers of grades."""


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair with its grade. Grades count from 0, the least relevant.

    document: the title's id, if the file has one: two documents may have one title. position: the title's
    rank in the order that is judged beside a model, from 1; by: the class of its query; both None unless they
    were asked for.
    """

    query: str
    title: str
    grade: int
    document: str | None = field(default=None, compare=False, kw_only=True)
    position: int | None = field(default=None, compare=False, kw_only=True)
    by: str | None = field(default=None, compare=False, kw_only=True)


def read_labelled(
    path: Path | Rows, *, grades: int, labels: Sequence[str] = (), columns: Columns = DEFAULT
) -> list[LabelledPair]:
    """Return the pairs of a file of judgments, each once (`settled`); other columns are ignored.

    grades: the number of grades; a grade is a whole number up to grades − 1, one of `labels`, which are their
        names, least relevant first, or with four or more grades a letter of ESCI. A number below 0, as TREC
        marks spam, is 0.
    Raises ModelError, which names the file, the line (in parquet the row, from 1) and says what is wrong.
    """
    return settled(list(iter_labelled(path, grades=grades, labels=labels, columns=columns)), str(path))


def iter_labelled(
    path: Path | Rows, *, grades: int, labels: Sequence[str] = (), columns: Columns = DEFAULT
) -> Iterator[LabelledPair]:
    """Yield the pairs of a file one at a time, each as often as it is judged: the file may be larger than
    memory.

    grades: the number of grades. labels: their names, least relevant first. Raises ModelError if the file
    cannot be read or a row is wrong.
    """
    grade_of = _grades_by_name(grades, labels)
    has_position = columns.position is not None or columns.order is not None
    for judgment in read_judgments(path, columns):
        value = judgment.grade
        word = _without_zeros(str(value).strip()).casefold()
        grade = 0 if word.startswith("-") and word[1:].isdecimal() else grade_of.get(word)
        if grade is None:
            others = f" or one of {', '.join(labels)}" if labels else ""
            raise ModelError(
                f"{judgment.where}: {judgment.column} {value!r} is not a whole number from 0 to {grades - 1}"
                f"{others}"
            )
        yield LabelledPair(
            judgment.query,
            judgment.title,
            grade,
            document=judgment.document,
            position=_position(judgment, columns) if has_position else None,
            by=None if judgment.by is None else str(judgment.by),
        )


def _position(judgment: Judgment, columns: Columns) -> int | None:
    """Return the rank of a title; None if the order of its query does not have it."""
    if judgment.position is None and columns.order is not None:
        return None
    text = _without_zeros(str(judgment.position).strip())
    if not text.isdecimal() or int(text) < 1:
        raise ModelError(
            f"{judgment.where}: {columns.position} {judgment.position!r} is not a position, a whole number "
            "from 1"
        )
    return int(text)


def settled(pairs: Sequence[LabelledPair], source: str) -> list[LabelledPair]:
    """Return each pair once, where it is first: as trec_eval, which refuses or drops the others.

    A pair is a query with a title, and with a document's id if there is one. Of different grades of one pair
    the lower median counts. A line on standard error counts both. source: the name of the data in it.
    """
    grades: dict[tuple[str, str, str | None], list[int]] = {}
    first: dict[tuple[str, str, str | None], LabelledPair] = {}
    for pair in pairs:
        key = (pair.query, pair.title, pair.document)
        grades.setdefault(key, []).append(pair.grade)
        first.setdefault(key, pair)
    repeated = len(pairs) - len(first)
    if not repeated:
        return list(pairs)
    differing = sum(len(set(of_pair)) > 1 for of_pair in grades.values())
    rule = f", {differing:,} of them with the lower median of different grades" if differing else ""
    rows = "row judges a pair" if repeated == 1 else "rows judge pairs"
    warn_once(f"{source}: {repeated:,} {rows} again; each pair counts once{rule}")
    return [
        pair
        if len(grades[key]) == 1
        else replace(pair, grade=sorted(grades[key])[(len(grades[key]) - 1) // 2])
        for key, pair in first.items()
    ]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (query, title) pairs of a file in one of the same formats, with or without grades.

    Raises ModelError if the file cannot be read, or lacks a column.
    """
    return [(judgment.query, judgment.title) for judgment in read_judgments(path, with_grade=False)]


def iter_rows(
    path: Path | Rows, columns: Columns, others: Sequence[str] = ()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each row of a file is, for errors, and its values: query, title and `others` at least.

    Raises ModelError if the file cannot be read, or lacks a column.
    """
    texts = (columns.query, columns.title)
    is_empty = True
    with opened(path, columns.delimiter) as table:
        table.check((*texts, *others))
        for row in table.read(texts, others):
            is_empty = False
            yield table.where_whole(row, texts, others), row.values
    if is_empty:
        raise ModelError(f"{path} holds no pairs")


def query_key(query: str) -> str:
    """Return a text that is the same for queries that differ only in capitals and spaces."""
    return " ".join(query.casefold().split())


def numbers_of_queries(pairs: Sequence[LabelledPair]) -> list[int]:
    """Return the number of each pair's query, in order of first appearance; all spellings of a query
    (`query_key`) have one number."""
    keys = {text: query_key(text) for text in dict.fromkeys(pair.query for pair in pairs)}
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return [numbers[keys[pair.query]] for pair in pairs]


def numbers_of_lists(pairs: Sequence[LabelledPair]) -> list[int]:
    """Return the number of each pair's list, in order of first appearance: the titles of one spelling of a
    query, which a model ranks together."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(pair.query for pair in pairs))}
    return [numbers[pair.query] for pair in pairs]


def digest(query: str) -> bytes:
    """Return what queries are sorted by before they are split: every run splits them alike."""
    return hashlib.sha256(query.encode()).digest()


def _without_zeros(number: str) -> str:
    """Return "3" of "3.000", as other programs write whole numbers; any other text as it is."""
    whole, point, decimals = number.partition(".")
    return whole if point and whole.removeprefix("-").isdigit() and not decimals.strip("0") else number


def _grades_by_name(grades: int, labels: Sequence[str]) -> dict[str, int]:
    """Return the grade of each word that a file may write for it. A number is a number, also as a label."""
    names = {}
    esci = ESCI[4] if grades > max(ESCI) else ESCI.get(grades, {})
    for word, grade in esci.items():
        names[word] = grade
        names[word[0]] = grade
    for grade, label in enumerate(labels):
        if not label.strip().isdigit():
            names[label.strip().casefold()] = grade
    return names | {str(grade): grade for grade in range(grades)}
