"""Reads judgments as other programs write them: pairs with grades, whose texts may be in files of their own.

The columns (or keys) are query, title and grade. Without these names, they are taken from those of Quepid and
OpenSearch's Search Relevance Workbench (`docid`, `rating`), of Amazon's ESCI (`product_title`, `esci_label`)
and of BEIR (`query-id`, `corpus-id`, `score`). TREC's qrels and the Workbench's json have theirs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from headroom.models.errors import ModelError, reading_problem
from headroom.models.quality.tables import Table, opened
from headroom.models.rows import Row, check_columns, problem_of


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a file's columns (or keys), and the character between the cells of csv.

    queries, titles: files with the texts of ids, if the file has ids in their place.
    """

    query: str = "query"
    title: str = "title"
    grade: str = "grade"
    delimiter: str = ","
    queries: str | None = None
    titles: str | None = None


DEFAULT = Columns()

TITLES = ("title", "product_title")
GRADES = ("grade", "rating", "esci_label")
QUERY_IDS = ("query_id", "query-id", "qid", "query")
TITLE_IDS = ("docid", "doc_id", "product_id", "corpus-id")
"""Names of columns that no option names. The first that is there counts."""

IDS = ("id", "_id", *TITLE_IDS, *QUERY_IDS[:-1])
QUERY_TEXTS = ("query", "text", "title")
TITLE_TEXTS = ("title", "product_title", "name", "text")
"""Names of columns in files of texts. In each row, the first that is not blank counts."""

LOCALE = "product_locale"
"""The ids of ESCI's products are unique within one of these."""

Key = tuple[str, ...]
"""What a text is looked up by: an id, and for ESCI's products the locale."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Judged pairs in memory, which are read as a file's are.

    name: of the data in errors and reports, which count rows from 0. values: each row's value of each column.
    """

    name: str
    values: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return self.name


class Judgment(NamedTuple):
    """A pair as a file judges it.

    where: its file and line, for errors. column: of the grade. grade: as it is written; None if not read.
    """

    where: str
    query: str
    title: str
    column: str
    grade: Any


def columns_of_second(path: Path, columns: Columns) -> Columns:
    """Return the names of the columns of a file that is read beside another one, whose columns options name.

    Where it lacks a named column, the first known one that is there counts, as without the options; and the
    comma, if their delimiter leaves one column. Raises ModelError if the file cannot be read.
    """
    try:
        for delimiter in (columns.delimiter, DEFAULT.delimiter):
            with opened(path, delimiter) as table:
                names = table.names
            if len(names) > 1:
                break
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(path, error)) from None
    usual = _Layout.of(names, replace(DEFAULT, queries=columns.queries, titles=columns.titles))
    chosen = {"delimiter": delimiter}
    for column in ("query", "title", "grade"):
        name = getattr(usual, column)
        if getattr(columns, column) not in names and name in names:
            chosen[column] = name
    return replace(columns, **chosen)


def read_judgments(
    path: Path | Rows, columns: Columns = DEFAULT, *, with_grade: bool = True
) -> Iterator[Judgment]:
    """Yield the judgments of a file, one at a time: it may be larger than memory, if it holds the texts.

    Rows of Quepid without a rating are left out. with_grade: False if the file needs no grades.
    Raises ModelError, which names the file, the line (in parquet the row, from 1) and says what is wrong.
    """
    if isinstance(path, Rows):
        yield from _in_memory(path, columns)
        return
    queries = _texts_of(path, columns, with_grade, "queries")
    titles = _texts_of(path, columns, with_grade, "titles")
    is_empty = True
    for where, layout, values in _rows(path, columns, with_grade):
        is_empty = False
        query = values[layout.query]
        title = values[layout.title]
        if queries is not None:
            query = _text(queries, (str(query),), f"{where}: {columns.queries}")
        if titles is not None:
            title = _text(titles, layout.title_key(values), f"{where}: {columns.titles}")
        yield Judgment(where, query, title, layout.grade, values[layout.grade] if with_grade else None)
    if is_empty:
        raise ModelError(f"{path} holds no pairs")


def _in_memory(rows: Rows, columns: Columns) -> Iterator[Judgment]:
    """Yield the judgments of rows that have the columns' names."""
    for index, values in enumerate(rows.values):
        where = f"{rows}, row {index}"
        if problem := problem_of(values, columns.query, columns.title, (columns.grade,)):
            raise ModelError(f"{where}: {problem}")
        yield Judgment(
            where, values[columns.query], values[columns.title], columns.grade, values[columns.grade]
        )
    if not rows.values:
        raise ModelError(f"{rows} holds no pairs")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a file of judgments. has_locale: whether titles' ids are unique within a locale."""

    query: str
    title: str
    grade: str
    has_locale: bool

    @classmethod
    def of(cls, names: Sequence[str], columns: Columns) -> _Layout:
        """Return the columns that options name, else the first known ones that are there."""
        grades = (*GRADES, "score") if "corpus-id" in names else GRADES
        return cls(
            _known(columns.query, DEFAULT.query, QUERY_IDS if columns.queries else (), names),
            _known(columns.title, DEFAULT.title, TITLE_IDS if columns.titles else TITLES, names),
            _known(columns.grade, DEFAULT.grade, grades, names),
            columns.titles is not None and LOCALE in names,
        )

    def title_key(self, values: Mapping[str, Any]) -> Key:
        """Return what the title of a row is looked up by."""
        key = (str(values[self.title]),)
        return (*key, str(values[LOCALE])) if self.has_locale else key


def _known(wanted: str, default: str, known: Sequence[str], names: Sequence[str]) -> str:
    if wanted != default:
        return wanted
    return next((name for name in known if name in names), wanted)


def _rows(path: Path, columns: Columns, with_grade: bool) -> Iterator[tuple[str, _Layout, Mapping[str, Any]]]:
    """Yield where each judged row is, for errors, the file's layout, and the row's values."""
    try:
        with opened(path, columns.delimiter) as table:
            layout = _Layout.of(table.names, columns)
            texts = [] if columns.queries else [layout.query]
            texts += [] if columns.titles else [layout.title]
            others = [name for name in (layout.query, layout.title) if name not in texts]
            others += [layout.grade] if with_grade else []
            others += [LOCALE] if layout.has_locale else []
            _check(path, table, (*texts, *others))
            for row in table.read(texts, others):
                if with_grade and layout.grade == "rating" and _is_unjudged(row, columns.delimiter):
                    continue
                where = f"{path}, {table.unit} {row.line}"
                if problem := row.problem or _problem_of(row.values, texts, others):
                    raise ModelError(f"{where}: {problem}")
                yield where, layout, row.values
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(path, error)) from None


def _check(path: Path, table: Table, needed: Sequence[str]) -> None:
    """Raise ModelError if a column is missing; and say so if there are ids, whose texts no option names."""
    missing = {name for name in needed if name not in table.names}
    hints = []
    for option, column, ids in (("--queries", "query", QUERY_IDS[:-1]), ("--titles", "title", TITLE_IDS)):
        found = next((name for name in ids if name in table.names), None)
        if column in missing and found is not None:
            hints.append(f"{option}, a file with the text of each {found}")
    if hints:
        raise ModelError(f"{path} has ids in place of texts; give {' and '.join(hints)}")
    if table.header:
        check_columns(table.header, table.names, needed)


def _problem_of(values: Mapping[str, Any], texts: Sequence[str], others: Sequence[str]) -> str:
    """Return why the values of a row are no judgment, or "" if they are."""
    query, title = (*texts, *others)[:2]
    if len(texts) == 2:
        return problem_of(values, query, title, others)
    missing = [column for column in (*texts, *others) if values.get(column) is None]
    if missing:
        return f"there is no {missing[0]}"
    return next((f"{column} is not text" for column in texts if not isinstance(values[column], str)), "")


def _is_unjudged(row: Row, delimiter: str) -> bool:
    """Return whether Quepid wrote the row for a query, or for one of its documents, that nobody rated."""
    if row.values is None:
        text = row.data.decode(errors="replace").rstrip("\r\n")
        return bool(row.problem) and len(next(csv.reader([text], delimiter=delimiter), ())) == 1
    return str(row.values.get("rating", "")).strip() == ""


def _texts_of(path: Path, columns: Columns, with_grade: bool, kind: str) -> dict[Key, str] | None:
    """Return the texts of the ids in a file of judgments, from the file that the option `kind` names."""
    name: str | None = getattr(columns, kind)
    if name is None:
        return None
    needed: set[Key] = set()
    for _, layout, values in _rows(path, columns, with_grade):
        needed.add((str(values[layout.query]),) if kind == "queries" else layout.title_key(values))
    has_locale = any(len(key) > 1 for key in needed)
    found: dict[Key, str] = {}
    for key, text in _read_texts(name, columns.delimiter, kind, has_locale):
        if key in needed:
            found.setdefault(key, text)
    return found


def _read_texts(name: str, delimiter: str, kind: str, has_locale: bool) -> Iterator[tuple[Key, str]]:
    """Yield the key and the text of each row of a file of texts."""
    texts = QUERY_TEXTS if kind == "queries" else TITLE_TEXTS
    try:
        with opened(name, delimiter) as table:
            names = table.names
            column = _known("", "", IDS, names)
            known = [one for one in texts if one != column]
            found = [one for one in known if one in names]
            is_named = bool(column and found)
            with_locale = has_locale and LOCALE in names
            if not is_named and table.kind == "tsv" and len(names) == 2:  # MS MARCO's have no header
                column, text = names
                found = known = [text]
                yield (column,), text
            elif not is_named:
                raise ModelError(
                    f"{name}: there is no column with ids ({', '.join(IDS[:4])} …) or none with texts "
                    f"({', '.join(texts)}); found {', '.join(names)}"
                )
            wanted = [*found[1:], column, *([LOCALE] if with_locale else ())]
            for row in table.read(found[:1], wanted):
                if row.problem:
                    raise ModelError(f"{name}, {table.unit} {row.line}: {row.problem}")
                text = _first_text(row.values, known)
                if text and row.values.get(column) is not None:
                    key: Key = (str(row.values[column]),)
                    if has_locale:
                        key = (*key, str(row.values.get(LOCALE)))
                    yield key, text
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(name, error)) from None


def _first_text(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these columns of a row that has a text or a number, or "" if none has."""
    for name in names:
        value = values.get(name)
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value)
    return ""


def _text(texts: Mapping[Key, str], key: Key, where: str) -> str:
    """Return the text of an id. Raises ModelError if there is none; where: for the error."""
    text = texts.get(key)
    if text is None:
        raise ModelError(f"{where} has no text for {' in '.join(key)}")
    return text
