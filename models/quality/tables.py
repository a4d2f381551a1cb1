"""Opens files of judgments, in any format, and rows in memory, as rows with named columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import orjson

from headroom.models.errors import ModelError, reading_problem
from headroom.models.files import check_regular, read_text
from headroom.models.rows import (
    CODECS,
    ROW_BYTES,
    Row,
    begins_as_qrels,
    check_columns,
    known_format,
    open_text,
    parquet_file,
    parquet_rows,
    problem_of,
    text_rows,
)

QRELS = (".txt", ".qrels", ".qrel")
"""How the names of TREC's files end. Those that begin with `qrels` and end in no known format are too."""

QREL_COLUMNS = ("query_id", "iteration", "docid", "grade")
"""The fields of a line of qrels. https://trec.nist.gov/data/qrels_eng/"""

WORKBENCH_COLUMNS = ("query", "docid", "rating")
"""A rating of the Search Relevance Workbench, as its csv names it too.
https://docs.opensearch.org/latest/search-plugins/search-relevance/judgments/"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in memory, which are read as a file's are.

    name: of the data in errors and reports, which count rows from 0. values: each row's value of each column.
    """

    name: str
    values: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the values, in hexadecimal."""
        digest = hashlib.sha256()
        for row in self.values:
            digest.update(repr(list(row.items())).encode())
        return digest.hexdigest()


Source = Path | str | Rows
"""The path of a file, or rows in memory."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A file's rows.

    source: its name, for errors. kind: qrels, json, csv, tsv, jsonl, parquet or memory. header: where the
    columns are named, for errors; "" if nothing names them. names: the columns; of jsonl and of rows in
    memory those of the first row. unit: of the numbers of rows. read: takes columns of texts and others,
    which are there, and returns the rows.
    """

    source: str
    kind: str
    header: str
    names: tuple[str, ...]
    unit: str
    read: Callable[[Sequence[str], Sequence[str]], Iterator[Row]]

    def check(self, needed: Sequence[str]) -> None:
        """Raise ModelError if a column is missing where a header names the columns, or two have one name."""
        if self.header:
            check_columns(self.header, self.names, needed)

    def where(self, row: Row) -> str:
        """Return where a row is, for errors. Raises ModelError if it cannot be read."""
        where = f"{self.source}, {self.unit} {row.line}"
        if row.problem:
            raise ModelError(f"{where}: {row.problem}")
        return where

    def where_whole(self, row: Row, texts: Sequence[str], others: Sequence[str]) -> str:
        """Return where a row is, for errors. Raises ModelError if it cannot be read or lacks a value.

        texts: columns of text that it must have. others: further columns that it must have.
        """
        where = self.where(row)
        if problem := problem_of(row.values, texts, others):
            raise ModelError(f"{where}: {problem}")
        return where


@contextmanager
def opened(source: Source, delimiter: str) -> Iterator[OpenTable]:
    """Yield a file, or rows in memory, as a table. delimiter: between the cells of csv.

    Raises ModelError, in one sentence with the file's name, if it cannot be read or has no known format.
    """
    try:
        if isinstance(source, Rows):
            yield _memory(source)
        elif str(source).lower().endswith(".json"):
            yield _workbench(str(source))
        else:
            with _opened_file(str(source), delimiter) as table:
                yield table
    except (ValueError, OSError, EOFError) as error:  # also pyarrow's
        raise ModelError(reading_problem(str(source), error)) from None


@contextmanager
def _opened_file(name: str, delimiter: str) -> Iterator[OpenTable]:
    import pyarrow

    check_regular(name)
    is_qrels, compression = _qrels_format(name)
    file_format = None if is_qrels else known_format(name, delimiter)
    with pyarrow.OSFile(name) as file:
        if file_format is not None and file_format.kind == "parquet":
            names = tuple(parquet_file(name, file, ()).schema_arrow.names)
            read = partial(parquet_rows, name, file)
            yield OpenTable(name, "parquet", name, names, "row", read)
            return
        stream = open_text(name, file, compression if file_format is None else file_format.compression)
        if file_format is None or (file_format.kind == "tsv" and begins_as_qrels(stream)):
            yield OpenTable(name, "qrels", "", QREL_COLUMNS, "line", lambda *_: _qrels(stream))
            return
        names, lines = text_rows(name, stream, file_format, ())
        header = f"{name}, line 1"
        if file_format.kind == "jsonl":
            header = ""
            first = next(lines, None)
            if first is not None:
                names = tuple(first.values or ())
                lines = chain([first], lines)
        yield OpenTable(name, file_format.kind, header, names, "line", lambda *_: lines)


def _memory(rows: Rows) -> OpenTable:
    names = tuple(rows.values[0]) if rows.values else ()
    numbered = (Row(number, b"", values) for number, values in enumerate(rows.values))
    return OpenTable(str(rows), "memory", "", names, "row", lambda *_: numbered)


def _qrels_format(name: str) -> tuple[bool, str]:
    """Return whether a file is named as qrels are, and its compression."""
    base = Path(name).name.lower()
    stem, _, end = base.rpartition(".")
    compression = end if end in CODECS else ""
    base = stem if compression else base
    is_other = base.endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"))
    return base.endswith(QRELS) or (base.startswith("qrels") and not is_other), compression


def _qrels(lines: IO[bytes]) -> Iterator[Row]:
    """Yield the lines of qrels."""
    for number, fields, data in fields_of_lines(lines):
        if len(fields) != len(QREL_COLUMNS):
            problem = f"{len(fields)} fields; a line of qrels has 4: query id, 0, document id, grade"
            yield Row(number, data, problem=problem)
        else:
            yield Row(number, data, dict(zip(QREL_COLUMNS, fields, strict=True)))


def fields_of_lines(lines: IO[bytes]) -> Iterator[tuple[int, list[str], bytes]]:
    """Yield the number, from 1, the fields between blanks, and the bytes of each line that has any."""
    number = 0
    while data := lines.readline(ROW_BYTES + 1):
        number += 1
        if fields := data.decode("utf-8-sig" if number == 1 else "utf-8").split():
            yield number, fields, data


def _workbench(name: str) -> OpenTable:
    """Return the ratings of a judgment list of the Search Relevance Workbench: the body that imports one, or
    the answer that holds one."""
    document = orjson.loads(read_text(name, ROW_BYTES))
    try:
        hits = document["hits"]["hits"] if "hits" in document else [{"_source": document}]
        ratings = [
            {"query": judged["query"], "docid": rating["docId"], "rating": rating["rating"]}
            for hit in hits
            for judged in hit["_source"]["judgmentRatings"]
            for rating in judged["ratings"]
        ]
    except (KeyError, TypeError):
        raise ModelError(
            f"{name} is no judgment list of the Search Relevance Workbench: `judgmentRatings`, each with "
            "`query` and `ratings` of `docId` and `rating`"
        ) from None
    rows = (Row(number, b"", rating) for number, rating in enumerate(ratings, start=1))
    return OpenTable(name, "json", "", WORKBENCH_COLUMNS, "rating", lambda *_: rows)
