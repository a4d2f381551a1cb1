"""Reads the rows of csv, tsv, jsonl and parquet files, for every command alike.

A row that is wrong is never read as another one: the caller gets it with its line and its problem.
"""

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, NamedTuple

import orjson

from headroom.models.errors import ModelError
from headroom.models.files import LFS_ADVICE, LFS_POINTER

KNOWN_FORMATS = "csv, tsv or jsonl (each also .gz or .zst; .ndjson is jsonl), or parquet"
CODECS = {"gz": "gzip", "zst": "zstd"}
BUFFER_BYTES = 1 << 20

ROW_BYTES = 64 << 20
"""The largest line, and the largest cell of csv, that is read."""

WRITTEN_LEVELS = 200
"""Rows with fewer nested objects and lists can be written again for certain."""

OTHER_DELIMITERS = {";": "give --delimiter ';'", "|": "give --delimiter '|'", "\t": "name the file .tsv"}
"""What a user can do about a file with other characters between its cells."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file.

    kind: csv, tsv, jsonl or parquet. compression: gz, zst or "". delimiter: between the cells of csv and tsv.
    """

    kind: str
    compression: str = ""
    delimiter: str = ","


class Row(NamedTuple):
    """A row of a file. line: its first line, or its row in parquet, from 1. data: its bytes, of a text file.

    values: by column; None if the row cannot be read. problem: why it cannot, else "".
    """

    line: int
    data: bytes
    values: Any = None
    problem: str = ""

    @property
    def text(self) -> str:
        """Return the row's beginning as text, whatever its encoding."""
        return self.data[:1000].decode("utf-8", "backslashreplace").rstrip("\r\n")


def format_of(name: str, delimiter: str = ",") -> Format | None:
    """Return the format that a file's name ends in, or None if it is unknown. delimiter: of csv."""
    parts = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    compression = parts.pop() if parts and parts[-1] in CODECS else ""
    kind = parts[-1] if parts else ""
    kind = "jsonl" if kind == "ndjson" else kind
    if kind not in ("csv", "tsv", "jsonl", "parquet") or (kind == "parquet" and compression):
        return None
    return Format(kind, compression, "\t" if kind == "tsv" else delimiter)


def known_format(name: str, delimiter: str) -> Format:
    """Return the format that a file's name ends in. Raises ModelError if it is unknown. delimiter: of csv."""
    file_format = format_of(name, delimiter)
    if file_format is None:
        raise ModelError(f"{name}: the name ends in no known format; use {KNOWN_FORMATS}")
    return file_format


def open_text(name: str, source: Any, compression: str) -> IO[bytes]:
    """Return the buffered text of an open file of pyarrow. compression: a key of CODECS, or "" for none.

    Raises ModelError if the file is a pointer of Git LFS.
    """
    import pyarrow

    _check_no_pointer(name, source)
    plain = pyarrow.CompressedInputStream(source, CODECS[compression]) if compression else source
    return io.BufferedReader(plain, BUFFER_BYTES)


def begins_as_qrels(stream: IO[bytes]) -> bool:
    """Return whether a tsv begins with a query id, 0, a passage id and a grade: MS MARCO's have no header."""
    first_line = stream.peek().split(b"\n", 1)[0]  # type: ignore[attr-defined]  # of a BufferedReader
    cells = first_line.decode(errors="replace").lstrip("\ufeff").strip("\r").split("\t")
    return len(cells) == 4 and cells[1] in ("0", "Q0") and cells[3].strip().removeprefix("-").isdigit()


def _check_no_pointer(name: str, source: Any) -> None:
    """Raise ModelError if an open file is a pointer of Git LFS."""
    source.seek(0)  # pyarrow wants it after a read of parquet
    beginning = source.read(len(LFS_POINTER))
    source.seek(0)
    if bytes(beginning) == LFS_POINTER:
        raise ModelError(f"{name} is {LFS_ADVICE}")


def text_rows(
    name: str, stream: IO[bytes], file_format: Format, needed: Sequence[str]
) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the columns that the first line of csv or tsv names, none of jsonl, and the rows.

    needed: columns that must be there. stream: the file's text, not compressed.
    Quotes of csv are as in RFC 4180. A row of tsv is one line: a quote that opens and does not close in it is
    a character like any other.
    Raises ModelError if the header is missing, lacks a needed column or names one twice; and, from the
    iterator, at a quote of csv that other lines follow, because they cannot be told from the quoted text.
    """
    lines = _lines(stream)
    if file_format.kind == "jsonl":
        return (), (_json_row(line) for line in lines if line.data.strip())
    is_tsv = file_format.kind == "tsv"
    records = map(_tsv_record, lines) if is_tsv else _csv_records(name, lines, file_format.delimiter)
    header = next(records, None)
    if header is None:
        raise ModelError(f"{name} is empty; its first line must name the columns")
    if header.text.startswith(("\\xff\\xfe", "\\xfe\\xff")):
        raise ModelError(f"{name} is UTF-16 text; save it as UTF-8")
    if header.problem:
        raise ModelError(f"{name}, line 1: {header.problem}")
    names = tuple(cell.strip() for cell in header.values)
    check_columns(f"{name}, line 1", names, needed)
    return names, (_named(record, names) for record in records if record.values or record.problem)


def parquet_file(name: str, source: Any, texts: Sequence[str], others: Sequence[str] = ()) -> Any:
    """Open a parquet file. source: an open file.

    Raises ModelError if a column of `texts` or `others` is missing, one of `texts` holds no text, or two
    columns have one name.
    """
    from pyarrow import parquet, types

    _check_no_pointer(name, source)
    file = parquet.ParquetFile(source)
    schema = file.schema_arrow
    check_columns(name, schema.names, (*texts, *others))
    for column in texts:
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ModelError(f"{name}: the column {column} holds {kind}, not text")
    return file


def parquet_rows(name: str, source: Any, texts: Sequence[str], others: Sequence[str]) -> Iterator[Row]:
    """Return these columns of the rows of a parquet file. Raises ModelError if they are not there.

    texts: columns that hold text. others: further columns.
    """
    file = parquet_file(name, source, texts, others)
    batches = file.iter_batches(columns=[*texts, *others])
    values = chain.from_iterable(batch.to_pylist() for batch in batches)
    return (Row(number, b"", row) for number, row in enumerate(values, start=1))


def check_columns(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise ModelError if a column is missing, or two have one name."""
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ModelError(f"{where}: two columns are named {twice[0]!r}")
    missing = [column for column in needed if column not in names]
    if missing:
        problem = f"{where}: there is no column {' and '.join(missing)}; found {_shortened(names)}"
        for sign, advice in OTHER_DELIMITERS.items():
            if len(names) == 1 and sign in names[0]:
                problem += f"; if {sign!r} stands between the cells, {advice}"
        raise ModelError(problem)


def problem_of(values: Mapping[str, Any], texts: Sequence[str], others: Sequence[str] = ()) -> str:
    """Return why the values of a row are no pair, or "" if they are.

    texts: columns of text: query and title, or one of them if the other is an id. others: further columns
    that must have a value.
    """
    for column in (*texts, *others):
        if values.get(column) is None:
            present = [name for name, value in values.items() if value is not None]
            return f"there is no {column}; found {_shortened(present) or 'nothing'}"
    for column in texts:
        if not isinstance(values[column], str):
            return f"{column} is not text"
    has_blank_query = len(texts) == 2 and not values[texts[0]].strip()
    return f"{texts[0]} is blank" if has_blank_query else ""


def duplicate_key(document: bytes) -> str | None:
    """Return a key that an object of a valid JSON document has twice; None if none is."""
    try:
        _KEYS.decode(document.decode())
    except _DuplicateKeyError as duplicate:
        return str(duplicate)
    return None


class _DuplicateKeyError(Exception):
    """An object has the same key twice. Carries the key out of the decoder."""


def _check_unique(members: list[tuple[str, Any]]) -> None:
    keys: set[str] = set()
    for key, _ in members:
        if key in keys:
            raise _DuplicateKeyError(key)
        keys.add(key)


# Only its keys are used. Numbers stay text, so that a number of a million digits costs nothing.
_KEYS = json.JSONDecoder(object_pairs_hook=_check_unique, parse_int=str, parse_float=str)


def _lines(stream: IO[bytes]) -> Iterator[Row]:
    """Yield each line of a file as a row without values."""
    number = 0
    while data := stream.readline(ROW_BYTES + 1):
        number += 1
        if len(data) > ROW_BYTES:
            raise OSError(f"line {number} is longer than {ROW_BYTES >> 20} MiB")
        yield Row(number, data.removeprefix(codecs.BOM_UTF8) if number == 1 else data)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(repr(str(name)[:40]) for name in names[:10])


def _json_row(line: Row) -> Row:
    data = line.data
    try:
        values = orjson.loads(data)
        if data.count(b"{") + data.count(b"[") >= WRITTEN_LEVELS:
            orjson.dumps(values)  # which writes fewer levels than it reads
    except orjson.JSONDecodeError as error:
        return line._replace(problem=f"not JSON ({error.msg} at column {error.pos + 1})")
    except orjson.JSONEncodeError:
        return line._replace(problem="nested too deep to be written again")
    if not isinstance(values, dict):
        return line._replace(problem="not a JSON object")
    if data.count(b":") > len(values) and (key := duplicate_key(data)) is not None:
        return line._replace(problem=f"the key {key[:40]!r} appears twice in one object")
    return line._replace(values=values)


def _tsv_record(line: Row) -> Row:
    """Return a line of tsv with its cells as its values.

    A cell that begins with a quote ends at its closing quote, as a writer of csv quotes it. If a quote of the
    line does not close, or text follows it, all cells of the line are as they stand, quotes included.
    """
    csv.field_size_limit(ROW_BYTES)
    try:
        text = line.data.decode()
    except UnicodeDecodeError:
        return line._replace(problem="not UTF-8 text")
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        try:
            (cells,) = csv.reader([text], delimiter="\t", quoting=quoting, strict=True)
            return line._replace(values=cells)
        except csv.Error as error:
            problem = _csv_problem(str(error))
    return line._replace(problem=problem)


def _csv_records(name: str, lines: Iterator[Row], delimiter: str) -> Iterator[Row]:
    """Yield the records of csv; their values are the cells.

    Raises ModelError at a wrong quote that took in further lines, which cannot be told from rows.
    """
    csv.field_size_limit(ROW_BYTES)
    taken: list[Row] = []

    def decoded() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line.data.decode(errors="surrogateescape")

    reader = csv.reader(decoded(), delimiter=delimiter, strict=True)
    while True:
        taken.clear()
        cells = None
        problem = ""
        try:
            cells = next(reader)
            "".join(cells).encode()
        except StopIteration:
            return
        except UnicodeEncodeError:  # by a surrogate, which stands for a byte that is not UTF-8
            problem = "not UTF-8 text"
        except csv.Error as error:
            problem = _csv_problem(str(error))
            first = taken[0].line
            if len(taken) > 1:
                message = f"{name}, lines {first} to {taken[-1].line}: {problem}; mend line {first}"
                raise ModelError(message) from None
        data = b"".join(line.data for line in taken)
        yield Row(taken[0].line, data, None if problem else cells, problem)


def _named(record: Row, names: Sequence[str]) -> Row:
    if record.problem:
        return record
    count = len(record.values)
    if count != len(names):
        problem = f"{count} cells, but the first line names {len(names)} columns"
        return record._replace(values=None, problem=problem)
    return record._replace(values=dict(zip(names, record.values, strict=True)))


def _csv_problem(reason: str) -> str:
    """Return what is wrong with a record, in words that name it in the file. reason: the csv module's."""
    if reason == "unexpected end of data":
        return "a quote that never closes"
    if reason.startswith("field larger than"):
        return f"a quote that never closes within {ROW_BYTES >> 20} MiB"
    if "expected after" in reason:
        return "text after a closing quote: another quote is missing, or one in the text is not doubled"
    if reason.startswith("new-line character"):
        return "a carriage return outside of quotes"
    return reason
