"""Reads rows of parquet files, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from models.errors import ModelError
from service.bulk.cells import cell
from service.bulk.reading import Fields, Row, Source

READ_BYTES = 4 << 20
"""About how many bytes of rows are read at a time."""

READ_ROWS = 1024


def source(name: str, raw: IO[bytes], fields: Fields) -> Source:
    """Return the rows of a parquet file. Raises ModelError if it is none or lacks a column."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(raw)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ModelError(f"{name} cannot be read: {error}") from None
    schema = file.schema_arrow
    names = schema.names
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ModelError(f"{name}: two columns are named {twice[0]!r}")
    for column in fields.needed:
        if column not in names:
            raise ModelError(f"{name}: there is no column {column}; found {', '.join(map(repr, names[:10]))}")
        kind = schema.field(column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise ModelError(f"{name}: the column {column} holds {kind}, not text")
    return Source(tuple(names), _rows(name, file), schema, file.metadata.num_rows)


def _rows(name: str, file: Any) -> Iterator[Row]:
    metadata = file.metadata
    total = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    mean = max(total // max(metadata.num_rows, 1), 1)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=max(1, min(READ_ROWS, READ_BYTES // mean))):
            size = batch.nbytes // max(batch.num_rows, 1)
            for values in batch.to_pylist():
                number += 1
                yield Row(number, values, "", "", size)
    except ValueError as error:
        raise ModelError(f"{name}, after row {number}: {error}") from None


def types_of(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> Any:
    """Return the Arrow schema of rows from a text file: a column of values of several types becomes text."""
    import pyarrow

    columns = []
    for name in names:
        try:
            kind = pyarrow.array([record.get(name) for record in records]).type
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            kind = pyarrow.string()
        columns.append((name, pyarrow.string() if pyarrow.types.is_null(kind) else kind))
    return pyarrow.schema(columns)


def table_of(records: Sequence[Mapping[str, Any]], types: Any) -> Any:
    """Return rows as an Arrow table; in a column of text, other values become JSON.

    Raises pyarrow.ArrowException if a value does not fit its column.
    """
    import pyarrow

    columns = []
    for field in types:
        values = [record.get(field.name) for record in records]
        if pyarrow.types.is_string(field.type):
            values = [value if isinstance(value, str | None) else cell(value) for value in values]
        columns.append(pyarrow.array(values, field.type))
    return pyarrow.table(columns, schema=types.remove_metadata())


def misfits(records: Sequence[Mapping[str, Any]], types: Any) -> dict[int, str]:
    """Return by place which rows hold a value that is not of its column's type, and what is wrong."""
    import pyarrow

    try:
        table_of(records, types)
    except (pyarrow.ArrowException, OverflowError, TypeError):
        pass
    else:
        return {}
    wrong = {}
    for place, record in enumerate(records):
        for field in types:
            try:
                table_of([record], pyarrow.schema([field]))
            except (pyarrow.ArrowException, OverflowError, TypeError):
                wrong[place] = f"{field.name} is not {field.type}, the type in the file's first rows"
    return wrong
