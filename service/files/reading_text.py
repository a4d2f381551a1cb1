"""Reads rows of csv, tsv and jsonl; what is wrong with one row never hides another."""

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import orjson

from models.errors import ModelError
from models.quality.labelled import OPEN_QUOTE, csv_problem
from service.api.body import duplicate_key

ROW_BYTES = 64 << 20
"""The largest row that is read."""

WRITTEN_LEVELS = 200
"""Nested objects and lists of a row that can be written again for certain."""

REREADS = 8
"""How often a line is read again as part of a row that began on a line before it.

Without a limit, a file in which every row fails after a thousand lines would be read a thousand times.
"""


class TextRow(NamedTuple):
    """A row of the file, or why it cannot be read. line: its first. size: its bytes.

    values: by column; of a record of csv, the cells. text: of a row that cannot be read.
    """

    line: int
    values: Any
    reason: str
    text: str
    size: int


class _Line(NamedTuple):
    """A line of a file, from 1, with its end.

    rereads: how many rows that held it, but did not begin with it, were refused.
    """

    number: int
    data: bytes
    rereads: int = 0


def _lines(stream: IO[bytes]) -> Iterator[_Line]:
    number = 0
    while data := stream.readline(ROW_BYTES + 1):
        number += 1
        if len(data) > ROW_BYTES:
            raise OSError(f"line {number} is longer than {ROW_BYTES >> 20} MiB")
        yield _Line(number, data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data)


def _bad(line: int, reason: str, data: bytes, size: int) -> TextRow:
    text = data[:1000].decode("utf-8", "backslashreplace").rstrip("\r\n")
    return TextRow(line, None, reason, text, size)


def jsonl_rows(stream: IO[bytes]) -> Iterator[TextRow]:
    """Yield the rows of a file with one JSON object per line."""
    for number, data, _ in _lines(stream):
        if data.strip():
            values, reason = _json(data)
            size = len(data)
            yield _bad(number, reason, data, size) if reason else TextRow(number, values, "", "", size)


def _json(data: bytes) -> tuple[Any, str]:
    """Return the object of a line, and what is wrong with it or ""."""
    try:
        values = orjson.loads(data)
        if data.count(b"{") + data.count(b"[") >= WRITTEN_LEVELS:
            orjson.dumps(values)  # which writes fewer levels than it reads
    except orjson.JSONDecodeError as error:
        return None, f"not JSON ({error.msg} at column {error.pos + 1})"
    except orjson.JSONEncodeError:
        return None, "nested too deep to be written again"
    if not isinstance(values, dict):
        return None, "not a JSON object"
    if data.count(b":") > len(values) and (key := duplicate_key(data)) is not None:
        return None, f'the key "{key}" appears twice in one object'
    return values, ""


def check_columns(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise ModelError if a column is missing, or two have one name."""
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ModelError(f"{where}: two columns are named {twice[0]!r}")
    missing = [column for column in needed if column not in names]
    if missing:
        found = ", ".join(repr(column[:40]) for column in names[:10])
        raise ModelError(f"{where}: there is no column {' and '.join(missing)}; found {found}")


def csv_rows(
    name: str, stream: IO[bytes], delimiter: str, needed: Sequence[str]
) -> tuple[tuple[str, ...], Iterator[TextRow]]:
    """Return the columns, which the first line names, and the rows of a csv file.

    Raises ModelError if the header is missing or lacks a column, or names one twice.
    """
    csv.field_size_limit(ROW_BYTES)
    records = _Records(stream, delimiter)
    header = records.next()
    if header is None:
        raise ModelError(f"{name} is empty; its first line must name the columns")
    if header.text.startswith(("\\xff\\xfe", "\\xfe\\xff")):
        raise ModelError(f"{name} is UTF-16 text; save it as UTF-8")
    if header.reason:
        raise ModelError(f"{name}, line 1: {header.reason}")
    names = tuple(cell.strip() for cell in header.values)
    check_columns(f"{name}, line 1", names, needed)
    rows = iter(lambda: records.next(len(names)), None)
    return names, (
        row if row.reason else row._replace(values=dict(zip(names, row.values, strict=True)))
        for row in rows
        if row.reason or row.values  # no blank line
    )


class _Records:
    """Records of a csv file, one or more lines each."""

    def __init__(self, stream: IO[bytes], delimiter: str) -> None:
        self._lines = _lines(stream)
        self._again: deque[_Line] = deque()
        self._taken: list[_Line] = []
        self._size = 0
        self._delimiter = delimiter
        self._reader = csv.reader(self._feed(), delimiter=delimiter, strict=True)

    def next(self, columns: int | None = None) -> TextRow | None:
        """Return the next record; None at the end. columns: how many cells it must have; None: any number.

        A quote that is not closed swallows the rows after it. So a record that is wrong ends with its first
        line, and its other lines are read again as records of their own.
        """
        self._taken, self._size = [], 0
        cells: list[str] = []
        reason = ""
        try:
            cells = next(self._reader)
        except StopIteration:
            return None
        except csv.Error as error:
            reason = csv_problem(error)
            # The error has ended the generator that the reader reads from.
            self._reader = csv.reader(self._feed(), delimiter=self._delimiter, strict=True)
        if cells and columns is not None and len(cells) != columns:
            reason = f"{len(cells)} cells, but the first line names {columns} columns"
        if reason:
            first, *others = self._taken
            self._again.extendleft(line._replace(rereads=line.rereads + 1) for line in reversed(others))
            self._taken, self._size = [first], len(first.data)
        else:
            try:
                "".join(cells).encode()
            except UnicodeEncodeError:  # by a surrogate, which `_feed` makes of a byte that is not UTF-8
                reason = "not UTF-8 text"
        line = self._taken[0].number
        if not reason:
            return TextRow(line, cells, "", "", self._size)
        return _bad(line, reason, b"".join(taken.data for taken in self._taken), self._size)

    def _feed(self) -> Iterator[str]:
        """Yield lines as text, those to read again first, and remember them."""
        while True:
            line = self._again.popleft() if self._again else next(self._lines, None)
            if line is None:
                return
            self._taken.append(line)
            self._size += len(line.data)
            if line.rereads >= REREADS and len(self._taken) > 1:
                raise csv.Error(OPEN_QUOTE)
            if self._size > ROW_BYTES:
                raise csv.Error(f"a quoted text is longer than {ROW_BYTES >> 20} MiB")
            yield line.data.decode(errors="surrogateescape")
