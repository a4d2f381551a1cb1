"""Reads rows of csv, tsv and jsonl; what is wrong with one row never hides another."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import orjson

from models.errors import ModelError
from models.quality.formats import OPEN_QUOTE, csv_problem
from service.api.strict_json import duplicate_key
from service.files.reading import QUOTED_TEXT, Fields, Row, Source

ROW_BYTES = 64 << 20
"""The largest row that is read."""

WRITTEN_LEVELS = 200
"""Nested objects and lists of a row that can be written again for certain."""

REREADS = 8
"""How often a line is read again as part of a row that began on a line before it.

Without a limit, a file in which every row fails after a thousand lines would be read a thousand times.
"""

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One line of a file, from 1, with its end. data is None if it is longer than ROW_BYTES.

    rereads: how many rows that held it, but did not begin with it, were refused.
    """

    number: int
    data: bytes | None
    rereads: int = 0


def _lines(stream: IO[bytes]) -> Iterator[Line]:
    number = 0
    while data := stream.readline(ROW_BYTES + 1):
        number += 1
        if len(data) > ROW_BYTES:
            while data and not data.endswith(b"\n"):
                data = stream.readline(ROW_BYTES)
            yield Line(number, None)
            continue
        if number == 1:
            data = data.removeprefix(_BOM)
        yield Line(number, data)


def _quoted(data: bytes) -> str:
    return data[:QUOTED_TEXT].decode("utf-8", "backslashreplace").rstrip("\r\n")


_TOO_LONG = f"longer than {ROW_BYTES >> 20} MiB"


def jsonl_source(stream: IO[bytes]) -> Source:
    """Return the rows of a file with one JSON object per line."""
    return Source((), _jsonl_rows(stream))


def _jsonl_rows(stream: IO[bytes]) -> Iterator[Row]:
    for number, data, _ in _lines(stream):
        if data is None:
            yield Row(number, None, _TOO_LONG, "", ROW_BYTES)
            continue
        if not data.strip():
            continue
        try:
            values = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            reason = f"not JSON ({error.msg} at column {error.pos + 1})"
            yield Row(number, None, reason, _quoted(data), len(data))
            continue
        if not isinstance(values, dict):
            yield Row(number, None, "not a JSON object", _quoted(data), len(data))
        elif _is_too_deep(data, values):
            yield Row(number, None, "nested too deep to be written again", _quoted(data), len(data))
        elif data.count(b":") > len(values) and (key := duplicate_key(data)) is not None:
            yield Row(number, None, f'the key "{key}" appears twice in one object', _quoted(data), len(data))
        else:
            yield Row(number, values, "", "", len(data))


def _is_too_deep(data: bytes, values: dict[str, Any]) -> bool:
    """Return whether orjson, which reads more levels than it writes, would refuse to write a row."""
    if data.count(b"{") + data.count(b"[") < WRITTEN_LEVELS:
        return False
    try:
        orjson.dumps(values)
    except orjson.JSONEncodeError:
        return True
    return False


def csv_source(name: str, stream: IO[bytes], delimiter: str, fields: Fields) -> Source:
    """Return the rows of a file whose first line names the columns.

    Raises ModelError if the header is missing or lacks a column, or names one twice.
    """
    csv.field_size_limit(ROW_BYTES)
    feed = _Feed(_lines(stream))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    try:
        names = next(reader, None)
    except csv.Error as error:
        raise ModelError(f"{name}, line 1: {csv_problem(error)}") from None
    if names is None:
        raise ModelError(f"{name} is empty; its first line must name the columns")
    if feed.is_utf16:
        raise ModelError(f"{name} is UTF-16 text; save it as UTF-8")
    if feed.is_broken:
        raise ModelError(f"{name}, line 1: not UTF-8 text")
    names = [column.strip() for column in names]
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ModelError(f"{name}, line 1: two columns are named {twice[0]!r}")
    missing = [column for column in fields.needed if column not in names]
    if missing:
        shown = ", ".join(repr(column[:40]) for column in names[:10])
        raise ModelError(
            f"{name}, line 1: there is no column {' and '.join(missing)}; found {shown}; the first line "
            "names the columns"
        )
    return Source(tuple(names), _csv_rows(reader, feed, names))


class _Feed:
    """Hands lines to a csv reader, and remembers those of the row that is being read."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._again: deque[Line] = deque()
        self.begin()
        self.is_utf16 = False

    def begin(self) -> None:
        """Begin a row."""
        self.row: list[Line] = []
        self.size = 0
        self.is_broken = False

    def retry(self) -> None:
        """Let the row end with its first line, and read the others again."""
        first, *others = self.row
        self._again.extendleft(line._replace(rereads=line.rereads + 1) for line in reversed(others))
        self.row = [first]
        self.size = len(first.data or b"")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.row.append(line)
        if line.data is None:
            raise csv.Error(_TOO_LONG)
        if line.rereads >= REREADS and len(self.row) > 1:
            raise csv.Error(OPEN_QUOTE)
        self.size += len(line.data)
        if self.size > ROW_BYTES:
            raise csv.Error(f"a quoted text is {_TOO_LONG}")
        if line.number == 1 and line.data.startswith(_UTF16):
            self.is_utf16 = True
        try:
            return line.data.decode()
        except UnicodeDecodeError:
            self.is_broken = True
            return line.data.decode(errors="surrogateescape")


def _csv_rows(reader: Iterator[list[str]], feed: _Feed, names: list[str]) -> Iterator[Row]:
    columns = len(names)
    while True:
        feed.begin()
        reason = ""
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = csv_problem(error)
        else:
            if not cells:
                continue  # a blank line
            if len(cells) != columns:
                reason = f"{len(cells)} cells, but the first line names {columns} columns"
        if reason:
            # A quote that is not closed swallows the rows after it, so only the row's first line is bad.
            feed.retry()
        elif feed.is_broken:
            reason = "not UTF-8 text"
        first = feed.row[0]
        if reason:
            text = b"".join(line.data or b"" for line in feed.row)
            yield Row(first.number, None, reason, _quoted(text), feed.size)
        else:
            yield Row(first.number, dict(zip(names, cells, strict=True)), "", "", feed.size)
