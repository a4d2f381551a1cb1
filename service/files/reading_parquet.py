"""Reads rows of parquet files, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from models.errors import ModelError
from service.files.cells import cell
from service.files.reading import Fields, Row, Source

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
        if not _is_text(kind):
            raise ModelError(f"{name}: the column {column} holds {kind}, not text")
    return Source(tuple(names), _rows(name, file), schema, file.metadata.num_rows)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _rows(name: str, file: Any) -> Iterator[Row]:
    metadata = file.metadata
    total = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    mean = max(total // max(metadata.num_rows, 1), 1)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=max(1, min(READ_ROWS, READ_BYTES // mean))):
            size = batch.nbytes // max(batch.num_rows, 1)
            for values, reason in _values(_with_times_as_text(batch)):
                number += 1
                yield Row(number, values, reason, "", size)
    except ValueError as error:
        raise ModelError(f"{name}, after row {number}: {error}") from None


def _with_times_as_text(batch: Any) -> Any:
    """Return a batch with times of day in nanoseconds, which Python does not have, as text."""
    import pyarrow

    exact = pyarrow.time64("ns")
    if exact not in batch.schema.types:
        return batch
    fields = [field.with_type(pyarrow.string()) if field.type == exact else field for field in batch.schema]
    return batch.cast(pyarrow.schema(fields))


def _times_of(texts: Sequence[str | None]) -> Any:
    """Return what `_with_times_as_text` made text as times of day again."""
    import pyarrow

    dated = [None if text is None else f"1970-01-01 {text}" for text in texts]
    return pyarrow.array(dated, pyarrow.string()).cast(pyarrow.timestamp("ns")).cast(pyarrow.time64("ns"))


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
    """Return the Arrow schema of rows from a text file.

    A column becomes text if its values have several types, or one that parquet cannot store, or if they leave
    open what a list, an object or the column holds: later rows may hold anything there.
    """
    import pyarrow

    columns = []
    for name in names:
        try:
            kind = pyarrow.array([record.get(name) for record in records]).type
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            kind = pyarrow.string()
        is_text = _is_open(kind) or any(_change(record.get(name), kind) for record in records)
        columns.append((name, pyarrow.string() if is_text else kind))
    return pyarrow.schema(columns)


def _is_open(kind: Any) -> bool:
    """Return whether a type says nothing of a value or a part of it: nulls, empty lists and objects."""
    from pyarrow import types

    if types.is_null(kind) or (types.is_struct(kind) and kind.num_fields == 0):
        return True
    return any(_is_open(kind.field(i).type) for i in range(kind.num_fields))


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
        if field.type == pyarrow.time64("ns"):
            columns.append(_times_of(values))
        else:
            columns.append(pyarrow.array(values, field.type))
    return pyarrow.table(columns, schema=types.remove_metadata())


def misfits(records: Sequence[Mapping[str, Any]], types: Any) -> dict[int, str]:
    """Return by place which rows hold a value that is not of its column's type, and what is wrong."""
    import pyarrow

    wrong = _changed_in_silence(records, types)
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


def _changed_in_silence(records: Sequence[Mapping[str, Any]], types: Any) -> dict[int, str]:
    """Return by place which rows hold a value that Arrow would change without an error, and why."""
    import pyarrow

    wrong = {}
    for field in types:
        if not pyarrow.types.is_string(field.type):  # in a column of text, every value is kept
            for place, record in enumerate(records):
                if reason := _change(record.get(field.name), field.type):
                    wrong[place] = f"{field.name} has {reason}"
    return wrong


def _change(value: Any, kind: Any) -> str:
    """Return what of a value Arrow would change; "" for nothing.

    Arrow leaves out a key that its type lacks, makes 1 of true and 2 of 2.5, and a list of a text's letters.
    """
    from pyarrow import types

    inner: list[tuple[Any, Any]] = []
    is_other = False
    if isinstance(value, bool):
        is_other = types.is_integer(kind) or types.is_floating(kind)
    elif isinstance(value, float):
        is_other = not value.is_integer() and types.is_integer(kind)
    elif isinstance(value, str):
        is_other = types.is_list(kind)
    elif isinstance(value, list) and types.is_list(kind):
        inner = [(item, kind.value_type) for item in value]
    elif isinstance(value, dict) and types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        for key in value:
            if key not in kinds:
                return f"{key!r}, which it does not have in the file's first rows"
        inner = [(value[key], kinds[key]) for key in value]
    if is_other:
        return f"{cell(value)[:40]} where the file's first rows have {kind}"
    return next((reason for item, type_ in inner if (reason := _change(item, type_))), "")
