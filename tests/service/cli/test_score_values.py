"""`headroom score --input F --output G` gives back the values that it was given, as typed at a prompt."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from service.files.running import Summary
from tests.prompt import Output, Run
from tests.service.files.killed import arguments, score_all

BREAKS = ["a\rb", "a\nb", "a\r\nb", "\r", '"', 'say "x"', "a,b", "a\tb", ";", "'", " a ", "\\"]
"""Texts that a cell of csv or tsv must be quoted for, and some that it need not be."""


def score(run: Run, source: Path, output: Path, options: list[str], *more: str) -> Output:
    result = run("score", "--input", str(source), "--output", str(output), *options, *more)
    assert result.status == 0, result.err
    return result


def lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def written(file: Path, values: list[Any]) -> Path:
    """Write a row of jsonl with each value."""
    file.write_text("".join(json.dumps({"query": "wood", "title": "lamp", "x": x}) + "\n" for x in values))
    return file


@pytest.mark.parametrize("source", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("target", ["b.csv", "b.tsv"])
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


@pytest.mark.parametrize(
    ("values", "texts"),
    [
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
    ],
)
def test_values_that_no_type_of_parquet_holds_become_text(
    run: Run, options: list[str], tmp_path: Path, values: list[Any], texts: list[str]
) -> None:
    output = tmp_path / "b.parquet"
    score(run, written(tmp_path / "a.jsonl", values), output, options)
    assert parquet.read_table(output)["x"].to_pylist() == texts


def scored(directory: Path, model: Path, values: list[Any]) -> tuple[Summary, Path]:
    """Score rows with these values in a column; the first two say its type. Returns the output too."""
    source, output = written(directory / "a.jsonl", values), directory / "b.parquet"
    return score_all(arguments(source, output, model), lambda *_: None, window_rows=2), output


@pytest.mark.parametrize(
    ("first", "late"),
    [
        (1, True),
        (1.5, False),
        (True, 1),
        (1, 2.5),
        (1, "b"),
        (1, 2**63),
        (1.5, 2**53),
    ],
)
def test_a_later_value_that_would_be_changed_is_set_aside(
    tiny_checkpoint: Path, tmp_path: Path, first: Any, late: Any
) -> None:
    summary, output = scored(tmp_path, tiny_checkpoint, [first, first, late, first])
    assert (summary.rows, summary.rejects) == (3, 1)
    assert parquet.read_table(output)["x"].to_pylist() == [first] * 3
    (reject,) = lines(Path(summary.rejects_file))
    assert (reject["line"], reject["reason"][:2]) == (3, "x ")


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
