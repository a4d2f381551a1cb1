"""`headroom score --input F --output G` neither loses nor changes what it is given, as typed at a prompt."""

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from headroom.service.files.parts import Parts
from headroom.version import version
from tests.modernberts import write_ettin
from tests.prompt import Run

ROWS = "query,title\nwood lamp,red lamp\n"


def names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def stopped(monkeypatch: pytest.MonkeyPatch, run: Run, *arguments: Any) -> None:
    """Run a command that stops when it has kept its first part."""

    keep = Parts.keep

    def stop(parts: Parts, *of_part: Any) -> None:
        keep(parts, *of_part)
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "keep", stop)
        assert "the same command goes on from there" in run(*arguments, status=1).err


def test_an_output_that_is_a_directory_is_refused_before_anything_is_scored(
    score: Run, tmp_path: Path
) -> None:
    (tmp_path / "out.csv").mkdir()
    for name in ("out.csv/b.csv", "a.csv"):
        (tmp_path / name).write_text(ROWS)
    before = names(tmp_path)
    for place in (str(tmp_path), tmp_path.as_uri()):
        result = score(tmp_path / "a.csv", f"{place}/out.csv", "--overwrite", status=1)
        assert "out.csv is a directory; " in result.err
        assert names(tmp_path) == before


def test_an_output_that_is_a_link_stays_one(score: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.csv").write_text(ROWS)
    output = tmp_path / "out.csv"
    output.symlink_to("disk/out.csv")
    for more in ([], ["--overwrite"]):
        score(tmp_path / "a.csv", output, *more)
        assert output.is_symlink()
    assert names(tmp_path / "disk") == ["out.csv"]


def test_a_directory_of_somebody_else_is_not_taken_for_parts(score: Run, tmp_path: Path) -> None:
    source, foreign = tmp_path / "a.csv", tmp_path / "out.csv.parts" / "brake.txt"
    source.write_text(ROWS)
    foreign.parent.mkdir()
    foreign.write_text("mine")
    assert f"{foreign} is in the way" in score(source, tmp_path / "out.csv", "--overwrite", status=1).err
    assert foreign.read_text() == "mine"


def test_parts_are_used_again_only_if_nothing_has_changed(
    score: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, plan = tmp_path / "a.csv", tmp_path / "out.csv.parts" / "plan.json"
    text = "query,title,other\nwood lamp,red lamp,0.*\n"
    source.write_text(text)
    stopped(monkeypatch, score, source, tmp_path / "out.csv")
    for change, reason in (
        (["--mask", "0.*"], "run with another mask or variant; repeat that run"),
        (["--dtype", "bfloat16"], "another device or number format; repeat that run"),
        (["--prefix", "my_"], "run with another choice of columns; repeat that run"),
        (["--query-column", "other"], "another choice of columns; repeat that run"),
    ):
        assert reason in score(source, tmp_path / "out.csv", *change, status=1).err
    kept = plan.read_text()
    release = json.loads(kept)["version of headroom"][0]
    assert release == version()
    plan.write_text(kept.replace(f'"{release}"', '"0.0.1"'))
    assert "another version of headroom" in score(source, tmp_path / "out.csv", status=1).err
    plan.write_text(kept)
    source.write_text(text.replace("red", "green"))
    other = score(source, tmp_path / "out.csv", status=1)
    assert f"run with another input, {source}; repeat that run" in other.err
    score(source, tmp_path / "out.csv", "--overwrite")


def test_an_output_that_would_replace_the_input_is_refused(
    score: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.csv").symlink_to("a.csv")
    (tmp_path / "a.csv").write_text(ROWS)
    (tmp_path / "b.csv.rejects.jsonl").write_text('{"query": "wood", "title": "lamp"}\n')
    before = names(tmp_path)
    monkeypatch.chdir(tmp_path)
    for source, output in (
        ("a.csv", "./a.csv"),
        ("a.csv", "link.csv"),
        ("a.csv", f"{tmp_path.as_uri()}/a.csv"),
        (f"{tmp_path.as_uri()}/a.csv", "a.csv"),
        ("b.csv.rejects.jsonl", "b.csv"),
    ):
        assert "--input" in score(source, output, "--overwrite", status=1).err, (source, output)
        assert names(tmp_path) == before
        assert (tmp_path / "a.csv").read_text() == ROWS


def test_a_stored_mask_or_a_module_that_changes_is_another_job(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    model, _, _ = write_ettin(tmp_path / "model")
    (model / "masks").mkdir()
    (model / "masks" / "mine.json").write_text('{"mask": "0.*"}')
    (tmp_path / "a.csv").write_text(ROWS)
    command = ["score", "--input", str(tmp_path / "a.csv"), "--output", str(tmp_path / "out.csv")]
    command += ["--model", str(model), "--mask", "@mine", "--device", "cpu", "--dtype", "float32"]
    stopped(monkeypatch, run, *command)

    (model / "masks" / "mine.json").write_text('{"mask": "1.*"}')
    mask = run(*command, status=1)
    assert "another model or stored mask" in mask.err
    (model / "masks" / "mine.json").write_text('{"mask": "0.*"}')
    config = (model / "2_Dense" / "config.json").read_text()
    (model / "2_Dense" / "config.json").write_text(f"{config} ")
    assert "another model or stored mask" in run(*command, status=1).err
    (model / "2_Dense" / "config.json").write_text(config)
    run(*command)


def test_a_row_that_cannot_be_written_again_is_set_aside(score: Run, tmp_path: Path) -> None:
    deep = '{"query": "wood", "title": "lamp", "more": ' + "[" * 400 + "]" * 400 + "}"
    (tmp_path / "a.jsonl").write_text(f'{{"query": "wood", "title": "lamp"}}\n{deep}\n')
    dates = pyarrow.array([0, 1 << 60], pyarrow.timestamp("us"))
    table = pyarrow.table({"query": ["wood", "wood"], "title": ["red", "lamp"], "date": dates})
    parquet.write_table(table, tmp_path / "b.parquet")
    output = tmp_path / "out.jsonl"
    assert "1 pairs scored" in score(tmp_path / "a.jsonl", output).out
    (reject,) = lines(Path(f"{output}.rejects.jsonl"))
    assert reject["line"] == 2
    assert "nested too deep" in str(reject["reason"])
    wrong = score(tmp_path / "b.parquet", tmp_path / "out.csv", status=1)
    assert "b.parquet cannot be read: " in wrong.err
    output = tmp_path / "out.parquet"  # as Arrow, the date is no problem
    score(tmp_path / "b.parquet", output)
    assert parquet.read_table(output).column("date").combine_chunks().equals(dates)


def test_a_value_that_the_output_cannot_hold_is_set_aside_and_not_changed(score: Run, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    row = {"query": "wood", "title": "lamp", "price": 1}
    late: list[dict[str, object]] = [{**row, "size": 2.5}, {**row, "score": 7}, {**row, "price": None}]
    rows = [row] * 4096 + late  # the first window says the columns
    source.write_text("".join(json.dumps(each) + "\n" for each in rows))

    as_parquet, as_lines = tmp_path / "out.parquet", tmp_path / "out.jsonl"
    for output in (as_parquet, as_lines):
        score(source, output)
    rejects = lines(Path(f"{as_parquet}.rejects.jsonl"))
    assert [reject["line"] for reject in rejects] == [4097, 4098]
    assert "'size' is no column of the file's first rows" in str(rejects[0]["reason"])
    (reject,) = lines(Path(f"{as_lines}.rejects.jsonl"))
    assert reject["line"] == 4098
    assert "'score' is the name of a new column" in str(reject["reason"])


BREAKS = ["a\rb", "a\nb", "a\r\nb", "\r", '"', 'say "x"', "a,b", "a\tb", ";", "'", " a ", "\\"]
"""Texts that a cell of csv or tsv must be quoted for, and some that it need not be."""


def test_line_ends_quotes_and_delimiters_survive_csv(score: Run, tmp_path: Path) -> None:
    rows = [
        {"query": f"wood{text}", "title": f"lamp{text}", **{f"h{text}h": text for text in BREAKS}}
        for text in BREAKS
    ]
    file, middle, end = tmp_path / "a.jsonl", tmp_path / "b.csv", tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(file, middle)
    with middle.open(newline="") as stream:
        cells = list(csv.reader(stream, strict=True))
    assert [line[: len(rows[0])] for line in cells] == [[*rows[0]], *([*row.values()] for row in rows)]

    again = score(middle, end, "--prefix", "again_")
    assert "set aside" not in again.err
    assert [{name: row[name] for name in rows[0]} for row in lines(end)] == rows
