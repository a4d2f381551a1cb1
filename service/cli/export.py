"""`headroom experiment export`: write an experiment's rows to a parquet or CSV file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow import RecordBatch, Schema

    from headroom.service.experiments.export import Page, Source

    GetPage = Callable[[Source, str], Page]
    """Returns the rows of one kind after a key."""

    class _Writer(Protocol):
        def write(self, batch: RecordBatch) -> None:
            """Append rows."""


SUFFIXES = (".parquet", ".csv", ".csv.gz")
"""What the name of an exported file may end with, which says its format."""


def check_suffix(out: Path) -> None:
    """Raise ValueError if a file's name does not say its format."""
    if not out.name.endswith(SUFFIXES):
        raise ValueError(f"{out.name}: must end with .parquet, .csv or .csv.gz, which says the format")


def export_rows(get_page: GetPage, out: Path) -> int:
    """Write all rows to a file, page by page, and return their number. Its name says the format.

    The file is not there before it is whole. Raises RuntimeError if it exists.
    """
    import pyarrow

    if out.exists():
        raise RuntimeError(f"{out} exists; give another --out, or delete it")
    schema = pyarrow.schema(
        {
            "unit": pyarrow.string(),
            "timestamp": pyarrow.timestamp("us", "UTC"),
            "experiment_id": pyarrow.string(),
            "variation_id": pyarrow.string(),
            "kind": pyarrow.string(),
            "id": pyarrow.string(),
            "metric": pyarrow.string(),
            "value": pyarrow.float64(),
            "impression": pyarrow.string(),
            "index": pyarrow.int32(),
            "team": pyarrow.string(),
            "teams": pyarrow.string(),
            "config_version": pyarrow.string(),
            "query_id": pyarrow.string(),
        }
    )
    number = 0
    draft = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        with _writer(draft, schema, out.name) as writer:
            for rows in _pages(get_page):
                columns = [list(column) for column in zip(*rows, strict=True)]
                at = schema.get_field_index("timestamp")
                columns[at] = [round(seconds * 1e6) for seconds in columns[at]]
                arrays = [
                    pyarrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
                ]
                writer.write(pyarrow.record_batch(arrays, schema=schema))
                number += len(rows)
        _give_name(draft, out)
    finally:
        draft.unlink(missing_ok=True)
    return number


def _give_name(draft: Path, out: Path) -> None:
    """Give a finished draft its name. Raises RuntimeError if a file of that name has come meanwhile."""
    try:
        os.link(draft, out)  # a rename would replace it
    except FileExistsError:
        raise RuntimeError(f"{out} has come while the rows were read; give another --out") from None
    except OSError:  # a file system without hard links
        draft.replace(out)


@contextmanager
def _writer(draft: Path, schema: Schema, name: str) -> Iterator[_Writer]:
    """Open a file for record batches, in the format that the name of the finished file says."""
    from pyarrow import csv, output_stream, parquet

    if name.endswith(".parquet"):
        with parquet.ParquetWriter(draft, schema, compression="zstd") as writer:
            yield writer
        return
    compression = "gzip" if name.endswith(".gz") else None
    with output_stream(str(draft), compression=compression) as file, csv.CSVWriter(file, schema) as writer:
        yield writer


def _pages(get_page: GetPage) -> Iterator[Sequence[Any]]:
    from headroom.service.experiments.export import SOURCES

    for source in SOURCES:
        after: str | None = ""
        while after is not None:
            page = get_page(source, after)
            after = page.next
            if page.rows:
                yield page.rows
