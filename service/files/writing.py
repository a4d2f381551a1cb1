"""Writes scored windows as parts, and puts the parts of a file together."""

import csv
import io
import math
import shutil
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

import orjson
import pyarrow
from pyarrow import parquet

from headroom.models.rows import BUFFER_BYTES, CODECS
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import Window
from headroom.service.files.storage import Storage

ROW_GROUP = 1 << 16
"""Rows of a row group of parquet, about."""

Result = Mapping[str, Sequence[Any]]
"""The values of the new columns by kind, one for each row of a window."""

_REAL = pyarrow.float32()
_WHOLE = pyarrow.int64()
TYPES = {
    "score": _REAL,
    "grade": _WHOLE,
    "label": pyarrow.string(),
    "expected_grade": _REAL,
    "probabilities": pyarrow.list_(_REAL),
    "truncated": pyarrow.bool_(),
}


def encode(window: Window, result: Result, options: ScoreOptions) -> bytes:
    """Return a window's rows with their scores as a part of a file."""
    target = window.target
    columns = [result[kind] for kind in options.kinds]
    if target.kind == "parquet":
        return _parquet(window, columns, options)
    if target.kind == "jsonl":
        text = _jsonl(window, columns, options.names)
    else:
        text = _csv(window, columns, options.names)
    if not target.compression:
        return text
    # A gz member or zst frame of its own: a file may hold several, one after the other.
    return cast(bytes, pyarrow.Codec(CODECS[target.compression]).compress(text, asbytes=True))


def encode_rejects(window: Window) -> bytes:
    """Return lines of JSON, one for each row that was set aside, in the order of the file."""
    return b"".join(
        orjson.dumps(
            {"file": window.name, "line": line, "reason": reason, "text": text},
            option=orjson.OPT_APPEND_NEWLINE,
        )
        for line, reason, text in sorted(window.rejects)
    )


def cell(value: Any) -> str:
    """Return a value as a cell of csv: text as it is, "" for None, numbers and anything else as JSON.

    nan, inf and -inf, which JSON does not have, are these words.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=str).decode()
    return text[1:-1] if text.startswith('"') else text  # dates


class _Lines(io.StringIO):
    """Rows of csv, which a csv writer writes one at a time; each ends with a newline alone."""

    def write(self, row: str) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def _csv(window: Window, columns: Sequence[Sequence[Any]], new: Sequence[str]) -> bytes:
    buffer = _Lines()
    # The writer quotes a carriage return only if it is part of the end of its lines.
    writer = csv.writer(buffer, delimiter=window.target.delimiter, lineterminator="\r\n")
    if window.number == 0:
        writer.writerow([*window.names, *new])
    for row, added in zip(window.rows, zip(*columns, strict=True), strict=True):
        writer.writerow([cell(value) for value in (*map(row.get, window.names), *added)])
    return buffer.getvalue().encode()


def _jsonl(window: Window, columns: Sequence[Sequence[Any]], new: Sequence[str]) -> bytes:
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return b"".join(
        orjson.dumps(row | dict(zip(new, added, strict=True)), option=options, default=str)
        for row, added in zip(window.rows, zip(*columns, strict=True), strict=True)
    )


def _parquet(window: Window, columns: Sequence[Sequence[Any]], options: ScoreOptions) -> bytes:
    table = window.table
    if table is None:
        texts = {
            name: [None if (value := row.get(name)) is None else cell(value) for row in window.rows]
            for name in window.names
        }
        table = pyarrow.table({name: pyarrow.array(each, pyarrow.string()) for name, each in texts.items()})
    for name, kind, values in zip(options.names, options.kinds, columns, strict=True):
        table = table.append_column(name, pyarrow.array(values, TYPES[kind]))
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd")
    return cast(bytes, buffer.getvalue().to_pybytes())


def assemble(storage: Storage, parts: Sequence[str], output: str, kind: str) -> None:
    """Put the parts of a file together, in order. kind: of its format."""
    with storage.create(output) as stream:
        if kind == "parquet":
            _assemble_parquet(storage, parts, stream)
            return
        for name in parts:
            with storage.open(name) as part:
                shutil.copyfileobj(part, stream, BUFFER_BYTES)


def _assemble_parquet(storage: Storage, parts: Sequence[str], stream: IO[bytes]) -> None:
    """Write the parts in row groups of at least ROW_GROUP rows."""
    tables: list[Any] = []
    writer: Any = None
    for index, name in enumerate(parts):
        with storage.open(name) as part:
            tables.append(parquet.read_table(part, use_threads=False))
        if sum(map(len, tables)) >= ROW_GROUP or index == len(parts) - 1:
            if writer is None:
                writer = parquet.ParquetWriter(stream, tables[0].schema, compression="zstd")
            writer.write_table(pyarrow.concat_tables(tables))
            tables = []
    writer.close()
