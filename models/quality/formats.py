"""The formats of files of pairs, told by the files' names."""

import csv
from dataclasses import dataclass

KINDS = ("csv", "tsv", "jsonl", "parquet")
COMPRESSIONS = ("gz", "zst")

OPEN_QUOTE = "a quote that never closes"


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file.

    kind: one of KINDS. compression: "gz", "zst" or "" for none. delimiter: between the cells of csv and tsv.
    """

    kind: str
    compression: str = ""
    delimiter: str = ","


def format_of(name: str, delimiter: str = ",") -> Format | None:
    """Return the format that a file's name ends in, or None if it is not known. delimiter: of csv."""
    parts = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    compression = parts.pop() if parts and parts[-1] in COMPRESSIONS else ""
    kind = parts[-1] if parts else ""
    if kind not in KINDS or (kind == "parquet" and compression):
        return None
    return Format(kind, compression, "\t" if kind == "tsv" else delimiter)


def csv_problem(error: csv.Error) -> str:
    """Return what is wrong with a row of csv or tsv, in words that name it in the file."""
    text = str(error)
    if text == "unexpected end of data":
        return OPEN_QUOTE
    if "expected after" in text:
        return "text after a closing quote: another quote is missing, or one in the text is not doubled"
    if text.startswith("new-line character"):
        return "a carriage return outside of quotes"
    return text
