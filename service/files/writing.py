"""Writes scored windows as parts, and puts the parts of a file together."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import orjson

from models.errors import ModelError
from models.quality.formats import Format
from service.files import reading_parquet
from service.files.cells import cell
from service.files.reading import Reject, Window
from service.files.storage import BUFFER_BYTES, Storage, compressed

if TYPE_CHECKING:
    from service.files.scoring import Result

ROW_GROUP = 1 << 16
"""Rows of a row group of parquet, about."""

GRADED = ("score", "grade", "label", "expected_grade", "probabilities", "truncated")
UNGRADED = ("score", "truncated")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are added to those of the input.

    suffixes: of the sets of columns, "" for a single one. graded: whether there are grades. chunks: whether
    the place of the best chunk is told. prefix: begins all new names.
    """

    suffixes: tuple[str, ...]
    graded: bool
    chunks: bool
    prefix: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of one set, without prefix and suffix."""
        return (GRADED if self.graded else UNGRADED) + (("chunk",) if self.chunks else ())

    def name(self, kind: str, suffix: str) -> str:
        """Return a column's name."""
        return f"{self.prefix}{kind}[{suffix}]" if suffix else self.prefix + kind

    @property
    def names(self) -> list[str]:
        """Return all names, in order."""
        return [self.name(kind, suffix) for suffix in self.suffixes for kind in self.kinds]

    def check(self, file: str, names: Iterable[str]) -> None:
        """Raise ModelError if the input has a column with one of the new names."""
        taken = sorted(set(names) & set(self.names))
        if taken:
            raise ModelError(
                f"{file} already has a column {taken[0]!r}; give the new columns other names with --prefix, "
                "such as --prefix model_"
            )

    def taken(self, records: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return by place which rows have a value with one of the new names, and its name."""
        names = set(self.names)
        return {
            place: f"{min(names & record.keys())!r} is the name of a new column; choose others with --prefix"
            for place, record in enumerate(records)
            if not names.isdisjoint(record)
        }


def encode(window: Window, results: Sequence[Result], layout: Layout, format_: Format) -> bytes:
    """Return a window's rows with their scores as a part of a file."""
    if format_.kind == "parquet":
        return _parquet(window, results, layout)
    if format_.kind == "jsonl":
        text = _jsonl(window, results, layout)
    else:
        text = _csv(window, results, layout, format_.delimiter)
    return compressed(text, format_.compression)


def encode_rejects(file: str, rejects: Sequence[Reject]) -> bytes:
    """Return lines of JSON, one for each row that was set aside, in the order of the file."""
    name = readable(file)
    lines = [
        orjson.dumps(
            {"file": name, "line": line, "reason": reason, "text": text}, option=orjson.OPT_APPEND_NEWLINE
        )
        for line, reason, text in sorted(rejects)
    ]
    return b"".join(lines)


def readable(name: str) -> str:
    """Return a file's name as text; bytes of it that are not UTF-8 are escaped, such as \\xe9."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _values(result: Result, kind: str) -> Sequence[Any] | np.ndarray:
    if kind == "chunk":
        return [
            None
            if chunk is None
            else {"index": chunk.index, "chunks": chunk.chunks, "start": chunk.start, "end": chunk.end}
            for chunk in result.chunk or ()
        ]
    return cast("Sequence[Any] | np.ndarray", getattr(result, kind))


def _columns(results: Sequence[Result], layout: Layout) -> list[Sequence[Any] | np.ndarray]:
    return [_values(result, kind) for result in results for kind in layout.kinds]


def _texts(values: Sequence[Any] | np.ndarray) -> list[str]:
    """Return values as cells of csv: float32 with as few digits as tell it apart, lists as JSON."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        return text[1:-1].split(",") if len(values) else []
    return [cell(value) for value in values]


class _Lines(io.StringIO):
    """Rows of csv, which a csv writer writes one at a time; each ends with a newline alone."""

    def write(self, row: str) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def _csv(window: Window, results: Sequence[Result], layout: Layout, delimiter: str) -> bytes:
    buffer = _Lines()
    # The writer quotes a carriage return only if it is part of the end of its lines.
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n")
    names = window.names
    if window.number == 0:
        writer.writerow([*names, *layout.names])
    added = zip(*map(_texts, _columns(results, layout)), strict=True)
    writer.writerows(
        [*[cell(record.get(name)) for name in names], *more]
        for record, more in zip(window.records, added, strict=True)
    )
    return buffer.getvalue().encode()


def _jsonl(window: Window, results: Sequence[Result], layout: Layout) -> bytes:
    names = layout.names
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    rows = zip(*_columns(results, layout), strict=True)
    return b"".join(
        orjson.dumps(record | dict(zip(names, values, strict=True)), option=options, default=str)
        for record, values in zip(window.records, rows, strict=True)
    )


def _parquet(window: Window, results: Sequence[Result], layout: Layout) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = reading_parquet.table_of(window.records, window.types)
    kinds = _kinds()
    columns = zip(layout.names, layout.kinds * len(results), _columns(results, layout), strict=True)
    for name, kind, values in columns:
        plain = list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values
        table = table.append_column(name, pyarrow.array(plain, kinds[kind]))
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd")
    return cast(bytes, buffer.getvalue().to_pybytes())


def _kinds() -> Mapping[str, Any]:
    import pyarrow

    real, whole = pyarrow.float32(), pyarrow.int64()
    return {
        "score": real,
        "grade": whole,
        "label": pyarrow.string(),
        "expected_grade": real,
        "probabilities": pyarrow.list_(real),
        "truncated": pyarrow.bool_(),
        "chunk": pyarrow.struct([(name, whole) for name in ("index", "chunks", "start", "end")]),
    }


def assemble(storage: Storage, parts: Sequence[str], output: str, format_: Format, *, into: Storage) -> None:
    """Put the parts of a file together, in order. It gets its name when it is whole."""
    with into.create(output) as stream:
        if format_.kind == "parquet":
            _assemble_parquet(storage, parts, stream)
            return
        for name in parts:
            with storage.open(name) as part:
                shutil.copyfileobj(part, stream, BUFFER_BYTES)


def _assemble_parquet(storage: Storage, parts: Sequence[str], stream: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet

    tables: list[Any] = []
    rows = 0
    writer: Any = None
    try:
        for i, name in enumerate(parts):
            with storage.open(name) as part:
                tables.append(parquet.read_table(part, use_threads=False))
            rows += len(tables[-1])
            if rows >= ROW_GROUP or i == len(parts) - 1:
                writer = writer or parquet.ParquetWriter(stream, tables[0].schema, compression="zstd")
                writer.write_table(pyarrow.concat_tables(tables))
                tables, rows = [], 0
    finally:
        if writer is not None:
            writer.close()
