"""One reader: labelled files refuse the rows and files that `headroom score --input` does not take."""

from pathlib import Path

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from headroom import ModelError
from headroom.models.quality.labelled import read_labelled
from tests.prompt import Run

WRONG_ROWS = [
    ("comma.csv", "4 cells, but the first line names 3 columns"),
    ("null.parquet", "there is no title; found 'query', 'grade'"),
]


@pytest.mark.parametrize(("name", "problem"), WRONG_ROWS)
def test_labelled_files_refuse_the_rows_that_scoring_sets_aside(
    score: Run, tmp_path: Path, name: str, problem: str
) -> None:
    """An unquoted comma moved the grade to the next cell, and the model was measured by it."""
    file, output = tmp_path / name, tmp_path / "scored.jsonl"
    if name.endswith("parquet"):
        where = "row"
        table = pyarrow.table({"query": ["mouse"] * 3, "title": ["a", None, "b"], "grade": ["1"] * 3})
        parquet.write_table(table, file)
    else:
        where = "line"
        file.write_text("query,title,grade\nmouse,wireless,1\nmouse,size 2,0,1\nmouse,red,1\n")
    score(file, output, "--prefix", "model_")
    (reject,) = map(orjson.loads, Path(f"{output}.rejects.jsonl").read_bytes().splitlines())
    assert len(output.read_bytes().splitlines()) == 2
    assert problem in reject["reason"]
    with pytest.raises(ModelError) as refused:
        read_labelled(file, grades=2)
    assert str(refused.value) == f"{file}, {where} {reject['line']}: {reject['reason']}"
