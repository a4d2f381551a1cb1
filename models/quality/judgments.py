"""Reads judgments as other programs write them: pairs with grades, whose texts may be in files of their own.

The columns (or keys) are query, title and grade. Without these names, they are taken from those of Quepid and
OpenSearch's Search Relevance Workbench (`docid`, `rating`), of Amazon's ESCI (`product_title`, `esci_label`)
and of BEIR (`query-id`, `corpus-id`, `score`). TREC's qrels and the Workbench's json have theirs.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headroom.models.errors import ModelError
from headroom.models.quality.orders import read_order
from headroom.models.quality.tables import OpenTable, Rows, Source, opened
from headroom.models.rows import Row
from headroom.models.terminal import warn_once

__all__ = ["DEFAULT", "Columns", "Judgment", "Rows", "columns_of_second", "read_judgments"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a file's columns (or keys), and the character between the cells of csv.

    queries, titles: files with the texts of ids, if the file has ids in their place. position: the column of
    a title's rank in the order that is judged beside a model, from 1. order: a file with that order:
    a TREC run, a snapshot of Quepid or queries of UBI. by: the column that puts queries into classes.
    """

    query: str = "query"
    title: str = "title"
    grade: str = "grade"
    delimiter: str = ","
    queries: str | None = None
    titles: str | None = None
    position: str | None = None
    order: str | None = None
    by: str | None = None


DEFAULT = Columns()

QUERIES = ("query", "query_text")
TITLES = ("title", "product_title")
GRADES = ("grade", "rating", "esci_label")
QUERY_IDS = ("query_id", "qid", "query", "query_text")
DOCUMENT_IDS = ("docid", "doc_id", "product_id", "corpus_id")
"""Names of columns that no option names, in small letters, with underscores for other characters.

The first that is there counts."""

IDS = ("id", "_id", *DOCUMENT_IDS, *QUERY_IDS[:2])
QUERY_TEXTS = ("query", "text", "title")
TITLE_TEXTS = ("title", "product_title", "name")
"""Names of columns in files of texts. The first that is there counts."""

BODY = "text"
"""The column that follows the title in a document's text: title, a space, text, as BEIR and MTEB join them.
https://arxiv.org/abs/2104.08663"""

LOCALE = "product_locale"
"""The ids of ESCI's products are unique within one of these."""

TextKey = tuple[str, ...]
"""What a text is looked up by: an id, and for ESCI's products the locale."""


class Judgment(NamedTuple):
    """A pair as a file judges it.

    where: its file and line, for errors. column: of the grade. grade: as it is written; None if not read.
    document: the title's id, if the file has one. position, by: as they are written, if columns or an order
    say them.
    """

    where: str
    query: str
    title: str
    column: str
    grade: Any
    document: str | None = None
    position: Any = None
    by: Any = None


def columns_of_second(source: Source, columns: Columns) -> Columns:
    """Return the names of the columns of a file that is read beside another one, whose columns options name.

    Where it lacks a named column, the first known one that is there counts, as without the options; and the
    comma, if their delimiter leaves one column. Raises ModelError if the file cannot be read.
    """
    for delimiter in (columns.delimiter, DEFAULT.delimiter):
        with opened(source, delimiter) as table:
            names = table.names
        if len(names) > 1:
            break
    usual = _JudgedColumns.of(names, replace(DEFAULT, queries=columns.queries, titles=columns.titles))
    chosen = {"delimiter": delimiter}
    for column in ("query", "title", "grade"):
        name = getattr(usual, column)
        if getattr(columns, column) not in names and name in names:
            chosen[column] = name
    return replace(columns, **chosen)


def read_judgments(
    source: Source, columns: Columns = DEFAULT, *, with_grade: bool = True
) -> Iterator[Judgment]:
    """Yield the judgments of a file, one at a time: it may be larger than memory, if it holds the texts.

    Rows of Quepid without a rating are left out; a line on standard error counts them. with_grade: False if
    the file needs no grades.
    Raises ModelError, which names the file, the line (in parquet the row, from 1) and says what is wrong.
    """
    texts = _texts_of_ids(source, columns, with_grade)
    order = None if columns.order is None else read_order(columns.order, columns.delimiter)
    unrated: Counter[str] = Counter()
    queries: set[str] = set()
    for where, layout, values in _rows(source, columns, with_grade, unrated):
        query = str(values[layout.query])
        title = str(values[layout.title])
        document = None if layout.document is None else str(values.get(layout.document))
        position = None if columns.position is None else values[columns.position]
        if order is not None:
            position = order.get(query, {}).get(title if document is None else document)
        queries.add(query)
        yield Judgment(
            where,
            texts.query.text(where, (query,)),
            texts.title.text(where, layout.title_key(values)),
            layout.grade,
            values[layout.grade] if with_grade else None,
            document,
            position,
            None if columns.by is None else values[columns.by],
        )
    if not queries:
        raise ModelError(f"{source} holds no pairs")
    if unrated:
        whole = len(unrated.keys() - queries)
        message = f"{source}: {unrated.total():,} rows have no rating and are left out"
        if whole:
            message += f", and with them {whole:,} whole {'query' if whole == 1 else 'queries'}"
        warn_once(message)


@dataclass(frozen=True, slots=True)
class _JudgedColumns:
    """The columns of a file of judgments. has_locale: whether titles' ids are unique within a locale.
    document: the column of the titles' ids, if there is one."""

    query: str
    title: str
    grade: str
    has_locale: bool
    document: str | None

    @classmethod
    def of(cls, names: Sequence[str], columns: Columns) -> _JudgedColumns:
        """Return the columns that options name, else the first known ones that are there."""
        document = _known(DOCUMENT_IDS, names)
        grades = (*GRADES, "score") if document is not None and _plain(document) == "corpus_id" else GRADES
        title = _named(columns.title, DEFAULT.title, DOCUMENT_IDS if columns.titles else TITLES, names)
        return cls(
            query=_named(columns.query, DEFAULT.query, QUERY_IDS if columns.queries else QUERIES, names),
            title=title,
            grade=_named(columns.grade, DEFAULT.grade, grades, names),
            has_locale=columns.titles is not None and LOCALE in names,
            document=title if columns.titles else document,
        )

    def title_key(self, values: Mapping[str, Any]) -> TextKey:
        """Return what the title of a row is looked up by."""
        key = (str(values[self.title]),)
        return (*key, str(values[LOCALE])) if self.has_locale else key

    def is_unjudged(self, row: Row, delimiter: str) -> bool:
        """Return whether Quepid wrote the row for a query, or for one of its documents, that nobody rated."""
        if _plain(self.grade) != "rating":
            return False
        if row.values is None:
            return bool(row.problem) and len(_cells(row, delimiter)) == 1
        return not _written(row.values.get(self.grade))


def _plain(name: str) -> str:
    """Return a column's name in small letters, with underscores for other characters: "Doc ID" is doc_id."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold())


def _known(known: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column that has the first of these names that is there."""
    by_name = {_plain(name): name for name in reversed(names)}
    return next((by_name[one] for one in known if one in by_name), None)


def _named(wanted: str, default: str, known: Sequence[str], names: Sequence[str]) -> str:
    """Return the column that an option names, else a known one, else the option's default."""
    return wanted if wanted != default else _known(known, names) or wanted


def _cells(row: Row, delimiter: str) -> list[str]:
    text = row.data.decode(errors="replace").rstrip("\r\n")
    return next(csv.reader([text], delimiter=delimiter), [])


def _rows(
    source: Source, columns: Columns, with_grade: bool, unrated: Counter[str]
) -> Iterator[tuple[str, _JudgedColumns, Mapping[str, Any]]]:
    """Yield where each judged row is, for errors, the file's layout, and the row's values. unrated: counts
    the rows that are left out, by query."""
    with opened(source, columns.delimiter) as table:
        layout = _JudgedColumns.of(table.names, columns)
        texts = [] if columns.queries else [layout.query]
        texts += [] if columns.titles else [layout.title]
        others = [name for name in (layout.query, layout.title) if name not in texts]
        others += [layout.grade] if with_grade else []
        others += [LOCALE] if layout.has_locale else []
        others += [name for name in (columns.position, columns.by) if name is not None]
        _check(source, table, (*texts, *others))
        document = layout.document
        optional = [] if document is None or document in (*texts, *others) else [document]
        for row in table.read(texts, [*others, *optional]):
            if with_grade and layout.is_unjudged(row, columns.delimiter):
                values = row.values or {layout.query: _cells(row, columns.delimiter)[0]}
                unrated[str(values.get(layout.query))] += 1
                continue
            yield table.where_whole(row, texts, others), layout, row.values


def _check(source: Source, table: OpenTable, needed: Sequence[str]) -> None:
    """Raise ModelError if a column is missing; and say so if there are ids, whose texts no option names."""
    missing = {name for name in needed if name not in table.names}
    hints = []
    for option, column, ids in (("--queries", "query", QUERY_IDS[:2]), ("--titles", "title", DOCUMENT_IDS)):
        found = _known(ids, table.names)
        if column in missing and found is not None:
            hints.append(f"{option}, a file with the text of each {found}")
    if hints:
        raise ModelError(f"{source} has ids in place of texts; give {' and '.join(hints)}")
    table.check(needed)


class _Texts(NamedTuple):
    """The texts that one column of judgments names.

    name: the file that holds the texts of ids; None if the judgments hold the texts. by_key: the file's.
    """

    name: str | None
    by_key: Mapping[TextKey, str]

    @classmethod
    def of(cls, name: str | None, delimiter: str, kind: str, needed: Set[TextKey]) -> _Texts:
        """Return the texts that a file has for the needed keys; of a key that is there twice, the first."""
        by_key: dict[TextKey, str] = {}
        if name is not None:
            has_locale = any(len(key) > 1 for key in needed)
            for key, text in _read_texts(name, delimiter, kind, has_locale):
                if key in needed:  # the texts of others take no memory
                    by_key.setdefault(key, text)
        return cls(name, by_key)

    def text(self, where: str, key: TextKey) -> str:
        """Return the text of a row. key: the text itself or its id. where: for the error if there is none."""
        if self.name is None:
            return key[0]
        text = self.by_key.get(key)
        if text is None:
            raise ModelError(f"{where}: {self.name} has no text for {' in '.join(key)}")
        return text


class _TextsOfIds(NamedTuple):
    query: _Texts
    title: _Texts


def _texts_of_ids(source: Source, columns: Columns, with_grade: bool) -> _TextsOfIds:
    """Return the texts of the ids in a file of judgments, from the files that `columns` names."""
    queries: set[TextKey] = set()
    titles: set[TextKey] = set()
    if columns.queries or columns.titles:
        for _, layout, values in _rows(source, columns, with_grade, Counter()):
            queries.add((str(values[layout.query]),))
            titles.add(layout.title_key(values))
    return _TextsOfIds(
        _Texts.of(columns.queries, columns.delimiter, "queries", queries),
        _Texts.of(columns.titles, columns.delimiter, "titles", titles),
    )


def _read_texts(name: str, delimiter: str, kind: str, has_locale: bool) -> Iterator[tuple[TextKey, str]]:
    """Yield the key and the text of each row of a file of texts. kind: `queries` or `titles`.

    All rows have their text from the same columns: of a document the title, a space, and the text, of which
    one may be blank.
    """
    known = QUERY_TEXTS if kind == "queries" else TITLE_TEXTS
    with opened(name, delimiter) as table:
        names = table.names
        column = _known(IDS, names)
        heading = _known([one for one in known if one != column], names)
        if heading is None and table.kind == "jsonl":
            heading = known[0]  # of rows after the first
        columns = [one for one in (heading, BODY if kind == "titles" else None) if one is not None]
        present = [one for one in columns if one in names]
        if table.kind == "tsv" and len(names) == 2 and not (column and present):  # MS MARCO's have no header
            column, text = names
            columns = present = [text]
            yield (column,), text
        elif column is None or not present:
            raise ModelError(
                f"{name}: there is no column with ids ({', '.join(IDS[:4])} …) or none with texts "
                f"({', '.join((*known, BODY))}); found {', '.join(names)}"
            )
        others = [*present[1:], column, *([LOCALE] if has_locale and LOCALE in names else [])]
        for row in table.read(present[:1], others):
            table.where(row)
            values = row.values
            text = " ".join(filter(None, (_written(values.get(one)) for one in columns)))
            if text and values.get(column) is not None:
                yield _text_key(values, column, has_locale), text


def _text_key(values: Mapping[str, Any], column: str, has_locale: bool) -> TextKey:
    key = (str(values[column]),)
    return (*key, str(values.get(LOCALE))) if has_locale else key


def _written(value: object) -> str:
    """Return a text or a number as it is written, "" for anything else and for blanks."""
    text = str(value) if isinstance(value, str | int | float) else ""
    return text if text.strip() else ""
