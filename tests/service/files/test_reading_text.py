"""Rows of damaged csv: each line comes out once, in a time that grows with the file and no faster."""

import io

import pytest

from service.files.reading_text import TextRow, csv_rows, jsonl_rows

LINES = 30_000
"""Read for every one of them, the lines would take hours."""


def rows(text: str) -> list[TextRow]:
    return found(("query,title\n" + text).encode())


def found(data: bytes) -> list[TextRow]:
    return list(csv_rows("a.csv", io.BytesIO(data), ",", ("query", "title"))[1])


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ('b","c\n', 0),  # closes a quote and opens another one
        ('b,"c\n', 0),
        ('",b,"\n', 0),
        ("b,c\n", LINES),
    ],
)
def test_every_line_after_an_open_quote_comes_out_once(line: str, good: int) -> None:
    found = rows('a,"b\n' + line * LINES + "last,one\n")
    assert [row.line for row in found] == list(range(2, LINES + 4))
    assert [row.values is not None for row in found[:-1]].count(True) == good
    assert found[-1].values == {"query": "last", "title": "one"}


def test_lines_of_a_refused_row_that_is_whole_stay_together() -> None:
    text = b'query,title\nq1,"caf\xe9\nfor two"\nq2,good\n'
    bad, good = found(text)
    assert (bad.line, bad.reason) == (2, "not UTF-8 text")
    assert bad.text == 'q1,"caf\\xe9\nfor two"'
    assert good.values == {"query": "q2", "title": "good"}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"query": "a: b", "query": "c", "title": "d"}', "query"),
        ('{"query": "a", "title": "b", "more": [{"id": 1, "id": 2}]}', "id"),
        ('{"query": "a: b", "title": "c"}', None),
    ],
)
def test_a_key_that_is_there_twice_is_refused_as_in_a_request(line: str, key: str | None) -> None:
    (row,) = jsonl_rows(io.BytesIO(line.encode()))
    assert row.reason == ("" if key is None else f'the key "{key}" appears twice in one object')


def test_json_that_is_wrong_is_named_by_its_column() -> None:
    (row,) = jsonl_rows(io.BytesIO(b'{"query": lamp}\n'))
    assert row.reason.startswith("not JSON (")
    assert row.reason.endswith(" at column 11)")
