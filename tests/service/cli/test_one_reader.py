"""One reader: labelled files refuse the rows and files that `headroom score --input` does not take."""

import gzip
from pathlib import Path

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from headroom import ModelError
from headroom.models.quality.labelled import read_labelled
from tests.prompt import Run

GOOD = {"query": "mouse", "title": "wireless", "grade": "1"}
WRONG_ROWS = [
    ("comma.csv", b"mouse,size 2,0,1\n", "4 cells, but the first line names 3 columns"),
    ("latin.csv", b"caf\xe9,wireless,1\n", "not UTF-8 text"),
    ("key.jsonl", b'{"query": "mouse", "title": "a", "grade": 0, "grade": 1}\n', "the key 'grade' appears"),
    ("null.parquet", None, "there is no title; found 'query', 'grade'"),
]


def write(file: Path, wrong: bytes | None) -> None:
    """Write a good row, the wrong one, and a good one, plain and with .gz and .zst added to the name."""
    if wrong is None:
        table = pyarrow.table({"query": ["mouse"] * 3, "title": ["a", None, "b"], "grade": ["1"] * 3})
        parquet.write_table(table, file)
        return
    sign = {".csv": ",", ".tsv": "\t"}.get(file.suffix)
    good = orjson.dumps(GOOD) + b"\n" if sign is None else sign.join(GOOD.values()).encode() + b"\n"
    header = b"" if sign is None else sign.join(GOOD).encode() + b"\n"
    data = header + good + wrong + good
    file.write_bytes(data)
    Path(f"{file}.gz").write_bytes(gzip.compress(data))
    Path(f"{file}.zst").write_bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))


@pytest.mark.parametrize(("name", "wrong", "problem"), WRONG_ROWS)
def test_labelled_files_refuse_the_rows_that_scoring_sets_aside(
    score: Run, tmp_path: Path, name: str, wrong: bytes | None, problem: str
) -> None:
    """An unquoted comma moved the grade to the next cell, and the model was measured by it."""
    write(tmp_path / name, wrong)
    for file in sorted(tmp_path.glob(f"{name}*")):
        output = tmp_path / f"scored of {file.name}.jsonl"
        score(file, output, "--prefix", "model_")
        (reject,) = map(orjson.loads, Path(f"{output}.rejects.jsonl").read_bytes().splitlines())
        where = "row" if name.endswith("parquet") else "line"
        assert len(output.read_bytes().splitlines()) == 2
        assert problem in reject["reason"]
        with pytest.raises(ModelError) as refused:
            read_labelled(file, grades=2)
        assert str(refused.value) == f"{file}, {where} {reject['line']}: {reject['reason']}"


WRONG_HEADERS = [
    ("twice.csv", b"query,title,grade,grade\nmouse,wireless,0,1\n", "two columns are named 'grade'"),
    ("semicolon.csv", b"query;title;grade\na;b;1\n", "between the cells, give --delimiter ';'"),
    ("tabs.csv", b"query\ttitle\tgrade\na\tb\t1\n", "between the cells, name the file .tsv"),
    ("wide.csv", "query,title,grade\na,b,1\n".encode("utf-16"), "is UTF-16 text"),
]


@pytest.mark.parametrize(("name", "data", "problem"), WRONG_HEADERS)
def test_labelled_files_and_scoring_refuse_a_file_in_the_same_words(
    score: Run, tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(ModelError) as refused:
        read_labelled(file, grades=2)
    assert problem in str(refused.value)
    assert problem in score(file, tmp_path / "out.csv", status=1).err
