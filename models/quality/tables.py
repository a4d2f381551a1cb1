"""Opens files of judgments, in any format, as rows with named columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import orjson

from headroom.models.errors import ModelError
from headroom.models.files import check_regular, read_bytes
from headroom.models.rows import (
    CODECS,
    ROW_BYTES,
    Row,
    known_format,
    open_text,
    parquet_file,
    parquet_rows,
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
class Table:
    """A file's rows.

    header: where the columns are named, for errors; "" if nothing names them. names: the columns; of jsonl
    those of the first row. unit: of the numbers of rows. read: takes columns of texts and others, which are
    there, and returns the rows.
    """

    kind: str
    header: str
    names: tuple[str, ...]
    unit: str
    read: Callable[[Sequence[str], Sequence[str]], Iterator[Row]]


@contextmanager
def opened(path: Path | str, delimiter: str) -> Iterator[Table]:
    """Yield a file as a table. delimiter: between the cells of csv.

    Raises ModelError if its name ends in no known format or its header is wrong; OSError or ValueError if it
    cannot be read.
    """
    import pyarrow

    name = str(path)
    check_regular(path)
    if name.lower().endswith(".json"):
        yield _workbench(name)
        return
    is_qrels, compression = _qrels_format(name)
    file_format = None if is_qrels else known_format(name, delimiter)
    with pyarrow.OSFile(name) as file:
        if file_format is None:
            rows = _qrels(open_text(file, compression))
            yield Table("qrels", "", QREL_COLUMNS, "line", _same(rows))
        elif file_format.kind == "parquet":
            names = tuple(parquet_file(name, file, ()).schema_arrow.names)
            yield Table("parquet", name, names, "row", lambda *wanted: parquet_rows(name, file, *wanted))
        else:
            stream = open_text(file, file_format.compression)
            names, lines = text_rows(name, stream, file_format, ())
            header = f"{name}, line 1"
            if file_format.kind == "jsonl":
                header = ""
                first = next(lines, None)
                if first is not None:
                    names = tuple(first.values or ())
                    lines = chain([first], lines)
            yield Table(file_format.kind, header, names, "line", _same(lines))


def _same(rows: Iterator[Row]) -> Callable[[Sequence[str], Sequence[str]], Iterator[Row]]:
    """Return a function that returns these rows, whatever columns are wanted."""

    def read(*_: Sequence[str]) -> Iterator[Row]:
        return rows

    return read


def _qrels_format(name: str) -> tuple[bool, str]:
    """Return whether a file is named as qrels are, and its compression."""
    base = Path(name).name.lower()
    stem, _, end = base.rpartition(".")
    compression = end if end in CODECS else ""
    base = stem if compression else base
    is_other = base.endswith((".csv", ".tsv", ".jsonl", ".parquet"))
    return base.endswith(QRELS) or (base.startswith("qrels") and not is_other), compression


def _qrels(lines: IO[bytes]) -> Iterator[Row]:
    """Yield the lines of qrels. A grade below 0, as TREC marks spam, is 0."""
    number = 0
    while data := lines.readline(ROW_BYTES + 1):
        number += 1
        fields = data.decode("utf-8-sig" if number == 1 else "utf-8").split()
        if not fields:
            continue
        if len(fields) != len(QREL_COLUMNS):
            problem = f"{len(fields)} fields; a line of qrels has 4: query id, 0, document id, grade"
            yield Row(number, data, problem=problem)
            continue
        if fields[-1].removeprefix("-").isdigit() and fields[-1].startswith("-"):
            fields[-1] = "0"
        yield Row(number, data, dict(zip(QREL_COLUMNS, fields, strict=True)))


def _workbench(name: str) -> Table:
    """Return the ratings of a judgment list of the Search Relevance Workbench: the body that imports one, or
    the answer that holds one."""
    document = orjson.loads(read_bytes(name, ROW_BYTES))
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
    return Table("json", "", WORKBENCH_COLUMNS, "rating", _same(rows))
