"""Rows of damaged files: each is named by its line, and none is read as another one."""

import csv
import io

import pytest

from headroom import ModelError
from headroom.models.rows import Row, known_format, text_rows


def rows(text: str | bytes, name: str = "a.csv") -> list[Row]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(text_rows(name, io.BytesIO(data), known_format(name, ","), ("query", "title"))[1])


def test_csv_is_read_as_the_csv_module_reads_it() -> None:
    text = 'query,title\r\n"a ""quoted"" text",b\r\n\r\nc,"two\r\nlines, a comma"\r\nopen "quote,is fine\r\n'
    expected = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    found = rows(text)
    assert [row.values for row in found] == expected
    assert [row.line for row in found] == [2, 4, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\nc,"d\ne,f\n', "lines 3 to 4: a quote that never closes; mend line 3"),
        ('a,b\nc,"d\ne,f\ng,"h"\ni,j\n', "lines 3 to 5: text after a closing quote.*; mend line 3"),
    ],
)
def test_an_open_quote_stops_the_reading_and_is_named(text: str, message: str) -> None:
    """The rows after it would be part of its text, and nobody would miss them."""
    with pytest.raises(ModelError, match=f"a.csv, {message}"):
        rows("query,title\n" + text)


def test_a_row_that_is_wrong_takes_no_other_with_it() -> None:
    text = b'query,title\nq1,"caf\xe9\nfor two"\nq2,good\nq3,"quoted" text\nq4,a,b\nq5\nq6,"open'
    found = rows(text)
    assert [(row.line, row.problem.split(":")[0]) for row in found] == [
        (2, "not UTF-8 text"),
        (4, ""),
        (5, "text after a closing quote"),
        (6, "3 cells, but the first line names 2 columns"),
        (7, "1 cells, but the first line names 2 columns"),
        (8, "a quote that never closes"),
    ]
    assert found[0].text == 'q1,"caf\\xe9\nfor two"'


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ('q1\t"Acme hammer', ["q1", '"Acme hammer']),
        ('q\t"a ""quoted"" text"', ["q", 'a "quoted" text']),
        ('"a\tb"\t""', ["a\tb", ""]),
    ],
)
def test_a_quote_of_tsv_ends_with_its_line(line: str, cells: list[str]) -> None:
    """MS MARCO's files hold quotes as they are; the lines up to the next one became part of one title."""
    found = rows(f"query\ttitle\nbefore\tx\n{line}\nafter\ty\n", "a.tsv")
    assert [[*row.values.values()] for row in found] == [["before", "x"], cells, ["after", "y"]]
    assert [row.line for row in found] == [2, 3, 4]


def test_a_line_of_tsv_that_is_wrong_takes_no_other_with_it() -> None:
    found = rows(b'query\ttitle\nq\t"two\nlines"\nq\tcaf\xe9\nq\ta\rb\n\nq\tgood\n', "a.tsv")
    assert [(row.line, row.problem.split(":")[0]) for row in found] == [
        (2, ""),
        (3, "1 cells, but the first line names 2 columns"),
        (4, "not UTF-8 text"),
        (5, "a carriage return outside of quotes"),
        (7, ""),
    ]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"query": "a: b", "query": "c", "title": "d"}', "query"),
        ('{"query": "a", "title": "b", "more": [{"id": 1, "id": 2}]}', "id"),
        ('{"query": "a: b", "title": "c"}', None),
    ],
)
def test_a_key_that_is_there_twice_is_refused_as_in_a_request(line: str, key: str | None) -> None:
    (row,) = rows(line, "a.jsonl")
    assert row.problem == ("" if key is None else f"the key {key!r} appears twice in one object")


def test_json_that_is_wrong_is_named_by_its_column() -> None:
    (row,) = rows(b'{"query": lamp}\n', "a.jsonl")
    assert row.problem.startswith("not JSON (")
    assert row.problem.endswith(" at column 11)")
