"""`headroom score --input F --output G` gives back the values that it was given, as typed at a prompt."""

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from tests.prompt import Output, Run

BREAKS = ["a\rb", "a\nb", "a\r\nb", "\r", '"', 'say "x"', "a,b", "a\tb", ";", "'", " a ", "\\"]
"""Texts that a cell of csv or tsv must be quoted for, and some that it need not be."""


def score(run: Run, source: Path, output: Path, options: list[str], *more: str) -> Output:
    result = run("score", "--input", str(source), "--output", str(output), *options, *more)
    assert result.status == 0, result.err
    return result


def lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def written(file: Path, columns: list[list[Any]]) -> Path:
    """Write rows of jsonl with these further columns: x0, x1, …"""
    rows = [
        {"query": "wood", "title": "lamp"} | {f"x{number}": x for number, x in enumerate(values)}
        for values in zip(*columns, strict=True)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(("source", "target"), [("a.jsonl", "b.tsv"), ("a.parquet", "b.csv")])
def test_line_ends_quotes_and_delimiters_survive_csv(
    run: Run, options: list[str], tmp_path: Path, source: str, target: str
) -> None:
    rows = [
        {"query": f"wood{text}", "title": f"lamp{text}", **{f"h{text}h": text for text in BREAKS}}
        for text in BREAKS
    ]
    file, middle, end = tmp_path / source, tmp_path / target, tmp_path / "c.jsonl"
    if source == "a.parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(run, file, middle, options)
    with middle.open(newline="") as stream:
        cells = list(csv.reader(stream, delimiter="," if target == "b.csv" else "\t", strict=True))
    assert [line[: len(rows[0])] for line in cells] == [[*rows[0]], *([*row.values()] for row in rows)]

    again = score(run, middle, end, options, "--prefix", "again_")
    assert "set aside" not in again.err
    assert [{name: row[name] for name in rows[0]} for row in lines(end)] == rows


TEXTS: list[tuple[list[Any], list[str | None]]] = [
    ([2**63 + 5, -1], ["9223372036854775813", "-1"]),
    ([-1, 2**63 + 5], ["-1", "9223372036854775813"]),
    ([[2**63 + 5], [-1]], ["[9223372036854775813]", "[-1]"]),
    ([{"id": 2**63}, {"id": 1}], ['{"id":9223372036854775808}', '{"id":1}']),
    ([{}, None], ["{}", None]),
    ([{"a": {}}, {"a": {}}], ['{"a":{}}', '{"a":{}}']),
    ([[{}], []], ["[{}]", "[]"]),
    ([[], None], ["[]", None]),
    ([{"a": []}, {"a": None}], ['{"a":[]}', '{"a":null}']),
    ([[1.5], None], ["[1.5]", None]),
    ([1.5, True], ["1.5", "true"]),
    ([1, True], ["1", "true"]),
]


def test_values_of_text_files_become_text_in_parquet(run: Run, options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "b.parquet"
    score(run, written(tmp_path / "a.jsonl", [values for values, _ in TEXTS]), output, options)
    table = parquet.read_table(output)
    assert [table[f"x{number}"].to_pylist() for number in range(len(TEXTS))] == [texts for _, texts in TEXTS]


def test_times_of_day_keep_their_nanoseconds(run: Run, options: list[str], tmp_path: Path) -> None:
    times = pyarrow.array([1, None, 86_399_999_999_999], pyarrow.time64("ns"))
    table = pyarrow.table({"query": ["wood"] * 3, "title": ["lamp"] * 3, "at": times})
    parquet.write_table(table, tmp_path / "a.parquet")
    score(run, tmp_path / "a.parquet", tmp_path / "b.parquet", options)
    assert parquet.read_table(tmp_path / "b.parquet")["at"].combine_chunks().equals(times)
    score(run, tmp_path / "a.parquet", tmp_path / "b.csv", options)
    with (tmp_path / "b.csv").open(newline="") as stream:
        texts = [row["at"] for row in csv.DictReader(stream)]
    assert texts == ["00:00:00.000000001", "", "23:59:59.999999999"]
