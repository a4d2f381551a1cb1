"""Reads files of pairs in windows: the same rows are in the same window whenever and wherever it is read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, NamedTuple

import orjson

from models.errors import ModelError
from models.quality.formats import Format
from service.files.formats import known_format
from service.files.storage import Storage, decompressed

WINDOW_ROWS = 4096
"""Rows of a window: enough for batches of similar length, few enough to lose when a job is killed."""

WINDOW_BYTES = 16 << 20
"""A window ends early after this many bytes of input, so that rows of any size fit into memory."""

QUOTED_TEXT = 500
"""How many characters of a bad row its reject quotes."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the input's columns. mask, variant: the columns that choose each row's; None for none.

    delimiter: between the cells of csv.
    """

    query: str = "query"
    title: str = "title"
    mask: str | None = None
    variant: str | None = None
    delimiter: str = ","

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of all columns that must be there."""
        return tuple(name for name in (self.query, self.title, self.mask, self.variant) if name is not None)


class Reject(NamedTuple):
    """A row that cannot be scored. line: its first line in the file, or its row in parquet, from 1."""

    line: int
    reason: str
    text: str


class Row(NamedTuple):
    """A row of the file: its values by column, or the reason why it is bad. size: its bytes, about."""

    line: int
    values: dict[str, Any] | None
    reason: str
    text: str
    size: int


@dataclass(slots=True)
class Window:
    """Neighbouring rows of one file.

    file: the number of the file in its job. number: the window's in its file, from 0. names: the columns of
    the file, in order. lines, records: the line and the values of each good row. rejects: the bad rows.
    types: the Arrow schema for parquet; None if the columns are text. share: of the file, read so far.
    """

    file: int
    number: int
    names: tuple[str, ...] = ()
    lines: list[int] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    types: Any = None
    share: float = 0.0

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Move some records, by their place, to the rejects."""
        if not reasons:
            return
        for place, reason in sorted(reasons.items()):
            self.rejects.append(Reject(self.lines[place], reason, quoted(self.records[place])))
        kept = [place for place in range(len(self.records)) if place not in reasons]
        self.records = [self.records[place] for place in kept]
        self.lines = [self.lines[place] for place in kept]


class Source(NamedTuple):
    """An open file. names: its columns, empty if each row names its own. rows: from the start.

    types: the Arrow schema of parquet. total: the number of rows, if it is known.
    """

    names: tuple[str, ...]
    rows: Iterator[Row]
    types: Any = None
    total: int | None = None


def windows(
    storage: Storage, name: str, number: int, fields: Fields, *, target: str, window_rows: int = WINDOW_ROWS
) -> Iterator[Window]:
    """Yield the windows of a file; at least one, unless the file cannot be read.

    number: the file's number in its job. target: the kind of file that will be written: all rows of csv, tsv
    and parquet have the same columns. Raises ModelError, which names the file, if it cannot be read.
    """
    format_ = known_format(name, fields.delimiter)
    stat = storage.stat(name)
    if stat is None:
        raise ModelError(f"{name} does not exist")
    raw = storage.open(name)
    try:
        source = _source(name, format_, raw, fields)
        share = partial(_share, source.total, raw, max(stat.size, 1))
        yield from _cut(source, number, fields, share, target, window_rows)
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        raise ModelError(f"{name} cannot be read: {error or 'it is cut short'}") from None
    finally:
        raw.close()


def _source(name: str, format_: Format, raw: IO[bytes], fields: Fields) -> Source:
    if format_.kind == "parquet":
        from service.files import reading_parquet

        return reading_parquet.source(name, raw, fields)
    from service.files import reading_text

    stream = decompressed(raw, format_.compression)
    if format_.kind == "jsonl":
        return reading_text.jsonl_source(stream)
    return reading_text.csv_source(name, stream, format_.delimiter, fields)


def _share(total: int | None, raw: IO[bytes], size: int, rows: int) -> float:
    return rows / max(total, 1) if total is not None else min(raw.tell() / size, 1.0)


def _cut(
    source: Source, number: int, fields: Fields, share: Callable[[int], float], target: str, window_rows: int
) -> Iterator[Window]:
    """Collect rows into windows, by rows and bytes of the input alone."""
    window = Window(number, 0, source.names, types=source.types)
    rows = held = before = 0
    for row in source.rows:
        if rows == window_rows or (rows and held + row.size > WINDOW_BYTES):
            before += rows
            window.share = share(before)
            yield _settled(window, source, target)
            window = Window(number, window.number + 1, window.names, types=window.types)
            rows = held = 0
        rows, held = rows + 1, held + row.size
        reason = row.reason if row.values is None else problem(row.values, fields)
        if row.values is None or reason:
            text = row.text if row.values is None else quoted(row.values)
            window.rejects.append(Reject(row.line, reason, text))
        else:
            window.lines.append(row.line)
            window.records.append(row.values)
    window.share = 1.0
    yield _settled(window, source, target)


def _settled(window: Window, source: Source, target: str) -> Window:
    """Let a file's first window say its columns and types, if the file does not; set aside what differs."""
    from_first_rows = not source.names
    if window.number == 0 and from_first_rows:
        window.names = tuple(dict.fromkeys(name for record in window.records for name in record))
    if from_first_rows and target != "jsonl" and window.number > 0:
        known = set(window.names)
        window.set_aside(
            {
                place: f"{sorted(record.keys() - known)[0]!r} is no column of the file's first rows"
                for place, record in enumerate(window.records)
                if not record.keys() <= known
            }
        )
    if target == "parquet" and source.types is None:
        from service.files import reading_parquet

        if window.types is None:
            window.types = reading_parquet.types_of(window.names, window.records)
        window.set_aside(reading_parquet.misfits(window.records, window.types))
    return window


def quoted(values: Mapping[str, Any]) -> str:
    """Return a row as a reject shows it."""
    return orjson.dumps(values, default=str).decode()[:QUOTED_TEXT]


def problem(values: Mapping[str, Any], fields: Fields) -> str:
    """Return why a row's values cannot be scored, or "" if they can."""
    for name in (fields.query, fields.title):
        text = values.get(name)
        if text is None:
            return f"there is no {name}"
        if not isinstance(text, str):
            return f"{name} is not text"
    if not values[fields.query].strip():
        return f"{fields.query} is blank"
    return ""
