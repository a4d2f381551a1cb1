"""Reads files of pairs in windows: the same rows are in the same window whenever and wherever it is read."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import orjson
import pyarrow

from models.errors import ModelError
from models.quality.labelled import Columns, Format
from service.files import reading_text
from service.files.options import ScoreOptions
from service.files.storage import BUFFER_BYTES, Storage

WINDOW_ROWS = 4096
"""Rows of a window: enough for batches of similar length, few enough to lose when a job is killed."""

WINDOW_BYTES = 16 << 20
"""A window ends early after this many bytes of input, so that rows of any size fit into memory."""

QUOTED_TEXT = 500
"""How many characters of a bad row its reject quotes."""

CODECS = {"gz": "gzip", "zst": "zstd"}


class Reject(NamedTuple):
    """A row that cannot be scored. line: its first line in the file, or its row in parquet, from 1."""

    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Window:
    """Neighbouring rows of a file.

    name: the file's. number: the window's, from 0. target: the format to write. names: the columns of the
    file, in order. lines, rows: the line and the values of each good row. rejects: the bad rows.
    table: the rows as Arrow, from parquet to parquet; then `rows` hold only query and title. share: of the
    file, read so far.
    """

    name: str
    number: int
    target: Format
    names: tuple[str, ...] = ()
    lines: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    table: Any = None
    share: float = 0.0

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Move some rows, by their index, to the rejects."""
        if not reasons:
            return
        for index, reason in sorted(reasons.items()):
            self.rejects.append(Reject(self.lines[index], reason, quoted(self.rows[index])))
        kept = [index for index in range(len(self.rows)) if index not in reasons]
        self.rows = [self.rows[index] for index in kept]
        self.lines = [self.lines[index] for index in kept]
        if self.table is not None:
            self.table = self.table.take(pyarrow.array(kept, pyarrow.int64()))


def windows(
    storage: Storage, window: Window, source: Format, options: ScoreOptions, window_rows: int
) -> Iterator[Window]:
    """Yield the windows of a file; at least one, unless the file cannot be read.

    window: the first one, empty. source: the file's format. Raises ModelError, which names the file, if it
    cannot be read or its columns do not fit the options.
    """
    name = window.name
    read = _parquet if source.kind == "parquet" else partial(_text, source)
    try:
        with storage.open(name) as raw:
            yield from read(raw, window, options, window_rows)
    except (OSError, EOFError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        raise ModelError(f"{name} cannot be read: {error or 'it is cut short'}") from None


def _text(
    source: Format, raw: pyarrow.NativeFile, window: Window, options: ScoreOptions, window_rows: int
) -> Iterator[Window]:
    """Yield windows of csv, tsv or jsonl, cut by rows and bytes of the input alone."""
    size, plain = max(raw.size(), 1), raw
    if source.compression:
        plain = pyarrow.CompressedInputStream(raw, CODECS[source.compression])
    stream = io.BufferedReader(plain, BUFFER_BYTES)
    fields = options.fields
    if source.kind == "jsonl":
        rows = reading_text.jsonl_rows(stream)
    else:
        names, rows = reading_text.csv_rows(
            window.name, stream, source.delimiter, (fields.query, fields.title)
        )
        window.names = names
    count = size_so_far = 0
    for row in rows:
        if count == window_rows or (count and size_so_far + row.size > WINDOW_BYTES):
            window.share = min(raw.tell() / size, 1.0)
            yield _settled(window, options)
            window = _next(window)
            count = size_so_far = 0
        count, size_so_far = count + 1, size_so_far + row.size
        if row.values is None:
            window.rejects.append(Reject(row.line, row.reason, row.text[:QUOTED_TEXT]))
        else:
            window.lines.append(row.line)
            window.rows.append(row.values)
    window.share = 1.0
    yield _settled(window, options)


def _parquet(raw: Any, window: Window, options: ScoreOptions, window_rows: int) -> Iterator[Window]:
    """Yield windows of parquet: batches of as many rows as fit by the file's mean row."""
    from pyarrow import parquet, types

    file, fields = parquet.ParquetFile(raw), options.fields
    schema, metadata = file.schema_arrow, file.metadata
    window.names = names = tuple(schema.names)
    needed = (fields.query, fields.title)
    reading_text.check_columns(window.name, names, needed)
    for column in needed:
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ModelError(f"{window.name}: the column {column} holds {kind}, not text")
    total = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    mean = max(total // max(metadata.num_rows, 1), 1)
    read = 0
    for batch in file.iter_batches(batch_size=max(1, min(window_rows, WINDOW_BYTES // mean))):
        if read:
            window = _next(window)
        table = pyarrow.Table.from_batches([batch])
        if window.target.kind == "parquet":
            window.table = table.replace_schema_metadata()
            table = table.select(needed)
        window.rows = _plain(table)
        window.lines = list(range(read + 1, read + len(window.rows) + 1))
        read += len(window.rows)
        window.share = read / metadata.num_rows
        yield _settled(window, options)
    if not read:
        window.table = schema.empty_table().replace_schema_metadata()
        yield _settled(window, options)


def _plain(table: Any) -> list[dict[str, Any]]:
    """Return the values of each row; times of day as text, because Python has no nanoseconds."""
    for index, column in enumerate(table.schema):
        if column.type == pyarrow.time64("ns"):
            table = table.set_column(index, column.name, table.column(index).cast(pyarrow.string()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _next(window: Window) -> Window:
    return Window(window.name, window.number + 1, window.target, window.names)


def _settled(window: Window, options: ScoreOptions) -> Window:
    """Set aside rows that cannot be scored or written. The first window says the file's columns."""
    fields, new = options.fields, set(options.names)
    window.set_aside({i: reason for i, row in enumerate(window.rows) if (reason := _problem(row, fields))})
    if window.number == 0:
        if not window.names:
            window.names = tuple(dict.fromkeys(name for row in window.rows for name in row))
        options.check_names(window.name, window.names)
        return window
    known, wrong = set(window.names), {}
    for index, row in enumerate(window.rows):
        if taken := new & row.keys():
            wrong[index] = f"{min(taken)!r} is the name of a new column; choose others with --prefix"
        elif window.target.kind != "jsonl" and (strange := row.keys() - known):
            wrong[index] = f"{min(strange)!r} is no column of the file's first rows"
    window.set_aside(wrong)
    return window


def _problem(values: Mapping[str, Any], fields: Columns) -> str:
    """Return why a row's values cannot be scored, or "" if they can."""
    for name in (fields.query, fields.title):
        text = values.get(name)
        if text is None:
            return f"there is no {name}"
        if not isinstance(text, str):
            return f"{name} is not text"
    return "" if values[fields.query].strip() else f"{fields.query} is blank"


def quoted(values: Mapping[str, Any]) -> str:
    """Return a row as a reject shows it."""
    return orjson.dumps(values, default=str).decode()[:QUOTED_TEXT]
