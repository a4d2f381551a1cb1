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
            for values, reason in _values(batch):
                number += 1
                yield Row(number, values, reason, "", size)
    except ValueError as error:
        raise ModelError(f"{name}, after row {number}: {error}") from None


def _values(batch: Any) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Yield the values of each row, or None and why Python cannot hold one of them: a date after 9999."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):
        if batch.num_rows > 1:
            for place in range(batch.num_rows):
                yield from _values(batch.slice(place, 1))
            return
        for name in batch.schema.names:
            try:
                batch.column(name).to_pylist()
            except (ValueError, OverflowError) as error:
                yield None, f"{name} cannot be read: {error}"
                return
        raise
    for values in rows:
        yield values, ""


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

    wrong = _with_extra_keys(records, types)
    try:
        table_of(records, types)
    except (pyarrow.ArrowException, OverflowError, TypeError):
        pass
    else:
        return wrong
    for place, record in enumerate(records):
        for field in types:
            try:
                table_of([record], pyarrow.schema([field]))
            except (pyarrow.ArrowException, OverflowError, TypeError):
                wrong[place] = f"{field.name} is not {field.type}, the type in the file's first rows"
    return wrong


def _with_extra_keys(records: Sequence[Mapping[str, Any]], types: Any) -> dict[int, str]:
    """Return by place which rows hold an object with a key that its type lacks; Arrow would leave it out."""
    import pyarrow

    wrong = {}
    for field in types:
        if pyarrow.types.is_nested(field.type):
            for place, record in enumerate(records):
                if (key := _extra_key(record.get(field.name), field.type)) is not None:
                    wrong[place] = (
                        f"{field.name} has {key!r}, which it does not have in the file's first rows"
                    )
    return wrong


def _extra_key(value: Any, kind: Any) -> str | None:
    import pyarrow

    if not pyarrow.types.is_nested(kind):
        return None
    inner: list[tuple[Any, Any]] = []
    if pyarrow.types.is_struct(kind) and isinstance(value, dict):
        types = {field.name: field.type for field in kind}
        for key in value:
            if key not in types:
                return str(key)
        inner = [(value[key], types[key]) for key in value]
    elif pyarrow.types.is_list(kind) and isinstance(value, list):
        inner = [(item, kind.value_type) for item in value]
    return next((key for item, type_ in inner if (key := _extra_key(item, type_)) is not None), None)
