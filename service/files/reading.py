"""Reads files of pairs in windows: the same rows are in the same window whenever and wherever it is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import pyarrow

from headroom.models.errors import ModelError
from headroom.models.rows import Format, open_text, parquet_file, problem_of, text_rows
from headroom.service.files.options import ScoreOptions
from headroom.service.files.storage import Storage

WINDOW_ROWS = 4096
"""Rows of a window: enough for batches of similar length, few enough to lose when a job is killed."""

WINDOW_BYTES = 16 << 20
"""A window ends early after this many bytes of input, so that rows of any size fit into memory."""

QUOTED_TEXT = 500
"""How many characters of a bad row its reject quotes."""


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
        kept_indices = [index for index in range(len(self.rows)) if index not in reasons]
        self.rows = [self.rows[index] for index in kept_indices]
        self.lines = [self.lines[index] for index in kept_indices]
        if self.table is not None:
            self.table = self.table.take(pyarrow.array(kept_indices, pyarrow.int64()))


def windows(
    storage: Storage, window: Window, source: Format, options: ScoreOptions, window_rows: int
) -> Iterator[Window]:
    """Yield the windows of a file; at least one, unless the file cannot be read.

    window: the first one, empty. source: the file's format. Raises ModelError, which names the file, if it
    cannot be read or its columns do not fit the options.
    """
    name = window.name
    try:
        with storage.open(name) as raw:
            if source.kind == "parquet":
                yield from _parquet(raw, window, options, window_rows)
            else:
                yield from _text(source, raw, window, options, window_rows)
    except (OSError, EOFError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        raise ModelError(f"{name} cannot be read: {error or 'it is cut short'}") from None


def _text(
    source: Format, raw: pyarrow.NativeFile, window: Window, options: ScoreOptions, window_rows: int
) -> Iterator[Window]:
    """Yield windows of csv, tsv or jsonl, cut by rows and bytes of the input alone."""
    file_bytes = max(raw.size(), 1)
    stream = open_text(window.name, raw, source.compression)
    window.names, rows = text_rows(window.name, stream, source, options.texts)
    window_bytes = 0
    for row in rows:
        count = len(window.rows) + len(window.rejects)
        if count == window_rows or (count and window_bytes + len(row.data) > WINDOW_BYTES):
            window.share = min(raw.tell() / file_bytes, 1.0)
            yield _checked(window, options)
            window = _next(window)
            window_bytes = 0
        window_bytes += len(row.data)
        if row.values is None:
            window.rejects.append(Reject(row.line, row.problem, row.text[:QUOTED_TEXT]))
        else:
            window.lines.append(row.line)
            window.rows.append(row.values)
    window.share = 1.0
    yield _checked(window, options)


def _parquet(raw: Any, window: Window, options: ScoreOptions, window_rows: int) -> Iterator[Window]:
    """Yield windows of parquet: batches of as many rows as fit by the file's mean row."""
    file = parquet_file(window.name, raw, options.texts)
    window.names = tuple(file.schema_arrow.names)
    file_rows = file.metadata.num_rows
    rows_read = 0
    for batch in file.iter_batches(batch_size=min(window_rows, _rows_that_fit(file.metadata))):
        if rows_read:
            window = _next(window)
        table = pyarrow.Table.from_batches([batch])
        if window.target.kind == "parquet":
            window.table = table.replace_schema_metadata()
            table = table.select(options.texts)
        window.rows = _python_values(table)
        window.lines = list(range(rows_read + 1, rows_read + len(window.rows) + 1))
        rows_read += len(window.rows)
        window.share = rows_read / file_rows
        yield _checked(window, options)
    if not rows_read:
        window.table = file.schema_arrow.empty_table().replace_schema_metadata()
        yield _checked(window, options)


def _rows_that_fit(metadata: Any) -> int:
    """Return how many rows of mean size fit into WINDOW_BYTES. metadata: of a parquet file."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    file_bytes = sum(group.total_byte_size for group in groups)
    row_bytes: int = max(file_bytes // max(metadata.num_rows, 1), 1)
    return max(WINDOW_BYTES // row_bytes, 1)


def _python_values(table: Any) -> list[dict[str, Any]]:
    """Return the values of each row; times of day as text, because Python has no nanoseconds."""
    for index, column in enumerate(table.schema):
        if column.type == pyarrow.time64("ns"):
            table = table.set_column(index, column.name, table.column(index).cast(pyarrow.string()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _next(window: Window) -> Window:
    return Window(window.name, window.number + 1, window.target, window.names)


def _checked(window: Window, options: ScoreOptions) -> Window:
    """Set aside rows that cannot be scored or written. The first window says the file's columns."""
    problems = {}
    for index, row in enumerate(window.rows):
        problem = problem_of(row, options.texts)
        if problem or (problem := _unwritable(row, window.target)):
            problems[index] = problem
    window.set_aside(problems)
    if window.number == 0:
        if not window.names:
            window.names = tuple(dict.fromkeys(name for row in window.rows for name in row))
        options.check_names(window.name, window.names)
        return window
    new_columns = set(options.names)
    known_columns = set(window.names)
    problems = {}
    for index, row in enumerate(window.rows):
        if taken := new_columns & row.keys():
            problems[index] = f"{min(taken)!r} is the name of a new column; choose others with --prefix"
        elif window.target.kind != "jsonl" and (unknown := row.keys() - known_columns):
            problems[index] = f"{min(unknown)!r} is no column of the file's first rows"
    window.set_aside(problems)
    return window


def _unwritable(row: Mapping[str, Any], target: Format) -> str:
    """Return why a row cannot be written in this format, or "" if it can: a row of tsv is one line."""
    if target.kind == "tsv":
        for name, value in row.items():
            if "\n" in name or (isinstance(value, str) and "\n" in value):
                return f"{name[:40]!r} has a line break, which tsv cannot hold; write csv, jsonl or parquet"
    return ""


def quoted(values: Mapping[str, Any]) -> str:
    """Return a row as a reject shows it."""
    return orjson.dumps(values, default=str).decode()[:QUOTED_TEXT]
