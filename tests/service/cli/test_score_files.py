"""`headroom score --input F --output G`, as typed at a prompt."""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import orjson
import pyarrow
import pytest
from pyarrow import parquet

from headroom import Classifier
from tests.prompt import Run

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("wood screws", "deck screws\nfor wood, 5 lb"),
    ("usb cable", 'a "fast" charger cable'),
]


def write(path: Path) -> Path:
    """Write the pairs with an id, compressed if the file's name says so."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("id", "query", "title"), *((i, *pair) for i, pair in enumerate(PAIRS))])
    text = buffer.getvalue().encode()
    path.write_bytes(pyarrow.Codec("zstd").compress(text, asbytes=True) if path.suffix == ".zst" else text)
    return path


def test_a_file_keeps_its_columns_and_gets_the_scores(score: Run, clf: Classifier, tmp_path: Path) -> None:
    source = tmp_path / "a.csv.zst"
    output = tmp_path / "b.parquet"
    assert "3 pairs scored" in score(write(source), output).out

    expected = clf.score(PAIRS)
    rows = parquet.read_table(output).to_pylist()
    assert [(row["query"], row["title"]) for row in rows] == PAIRS
    assert [str(row["id"]) for row in rows] == ["0", "1", "2"]
    for name in ("score", "expected_grade", "grade", "probabilities"):
        found = [np.float64(row[name]) for row in rows]
        np.testing.assert_allclose(found, getattr(expected, name), atol=1e-5)
    assert [row["label"] for row in rows] == [clf.grades[grade] for grade in expected.grade]
    assert sorted(tmp_path.iterdir()) == [source, output]


def test_bad_rows_are_set_aside_with_line_and_reason(score: Run, tmp_path: Path) -> None:
    cell = "steel lamp " * 1_000_000  # 11 MB
    file, output = tmp_path / "rows.csv", tmp_path / "scored.csv"
    lines = [
        b"query,title\n",
        b"usb cable,red cable\n",
        b"too,many,cells\n",
        b"latin,caf\xe9\n",
        b" ,blank query\n",
        b'an open "quote,is fine\n',
        b'two,"lines\nof title"\n',
        b'wrong,"quote" here\n',
        f"long,{cell}\n".encode(),
        b"last,one\n",
    ]
    file.write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    summary = orjson.loads(score(file, output, "--json").out)
    assert (summary["rows"], summary["rejects"]) == (5, 4)

    csv.field_size_limit(1 << 26)
    with output.open(newline="") as stream:
        kept = [row["query"] for row in csv.DictReader(stream)]
    assert kept == ["usb cable", 'an open "quote', "two", "long", "last"]
    rejects = [orjson.loads(line) for line in Path(summary["rejects_file"]).read_text().splitlines()]
    assert [reject["line"] for reject in rejects] == [3, 4, 5, 9]
    reasons = ("3 cells", "not UTF-8", "blank", "closing quote")
    for reject, reason in zip(rejects, reasons, strict=True):
        assert reason in reject["reason"]
    assert rejects[1]["text"] == "latin,caf\\xe9"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("wide.csv", "query,title\na,b\n".encode("utf-16"), "is UTF-16 text"),
        ("bad.jsonl", b"[]\n{}\n", "no row can be scored; the first that cannot: "),
        ("cut.csv.gz", gzip.compress(b"query,title\na,b\n" * 99, mtime=0)[:-20], "cannot be read"),
        ("twice.csv", b"query,title,title\na,b,c\n", "two columns are named 'title'"),
        ("semicolon.csv", b"query;title\na;b\n", "between the cells, give --delimiter ';'"),
        ("taken.csv", b"query,title,score\na,b,1\n", "already has a column 'score'"),
    ],
)
def test_a_file_that_cannot_be_scored_is_one_line_and_leaves_nothing(
    score: Run, tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(data)
    result = score(tmp_path / name, tmp_path / "out.csv", status=1)
    assert reason in result.err
    assert result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_output_that_cannot_be_written_or_exists(
    run: Run, score: Run, options: list[str], tmp_path: Path
) -> None:
    source, output = write(tmp_path / "a.csv"), tmp_path / "out.csv"
    for place in ("/proc/nowhere/out.csv", source / "out.csv"):
        result = score(source, place, status=1)
        assert "cannot be written: " in result.err
        assert result.err.count("\n") == 1
    score(source, output)
    before = output.read_bytes()
    again = score(source, output, status=1)
    assert "exists; choose another --output, or replace it with --overwrite" in again.err
    score(source, output, "--overwrite", "--mask", "0.*")
    assert output.read_bytes() != before
    for wrong in (
        ["--input", "a.csv"],
        ["--output", "b.csv"],
        ["q", "--input", "a.csv", "--output", "b.csv"],
    ):
        run("score", *wrong, *options, status=2)
    two = ["--mask", "0.*", "--mask", "1.*"]
    assert "score once for each" in run("score", "a", "b", *two, *options, status=2).err
    assert "score once for each" in score(source, tmp_path / "two.csv", *two, status=2).err
