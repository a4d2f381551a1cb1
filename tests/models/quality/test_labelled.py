"""Labelled files: every format gives the same pairs, every wrong row is named."""

import gzip
from pathlib import Path

import pytest

from headroom import ModelError
from headroom.models.quality.labelled import Columns, LabelledPair, read_labelled

PAIRS = [
    LabelledPair("angle bracket", 'Simpson "Strong-Tie", 12-Gauge', 4),
    LabelledPair("강남역", "wood\tscrews", 0),
]
CSV = (
    'title,extra,query,grade\r\n"Simpson ""Strong-Tie"", 12-Gauge",x,angle bracket,4\r\n'
    "wood\tscrews,,강남역,0\r\n"
)
JSONL = (
    '{"query": "angle bracket", "title": "Simpson \\"Strong-Tie\\", 12-Gauge", "grade": 4, "fold": 2}\n'
    '\n{"query": "강남역", "title": "wood\\tscrews", "grade": 0}\n'
)
TSV = 'query\ttitle\tgrade\nangle bracket\t"Simpson ""Strong-Tie"", 12-Gauge"\t4\n강남역\t"wood\tscrews"\t0\n'


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.tsv", TSV), ("a.jsonl", JSONL)])
def test_text_formats_plain_zipped_and_with_a_byte_order_mark(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))

    assert read_labelled(tmp_path / name, grades=5) == PAIRS
    assert read_labelled(tmp_path / f"{name}.gz", grades=5) == PAIRS


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.parquet").write_bytes(b"not parquet")
    with pytest.raises(ModelError, match=r"b\.parquet"):
        read_labelled(tmp_path / "b.parquet", grades=5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "query,title,grade\na,b,1\na,b,5\n", "line 3: grade '5' is not a whole number from 0 to 4"),
        ("a.csv", "query,title\na,b\n", "line 1: there is no column grade; found 'query', 'title'"),
        ("a.jsonl", '{"query": "a", "title": "b", "grade": true}\n', "grade True"),
        ("a.jsonl.gz", "not zipped", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        read_labelled(tmp_path / name, grades=5)


@pytest.mark.parametrize(
    ("grade", "labels", "expected"),
    [
        ("Exact", ("no", "some", "exact"), 2),
        (" e ", ("irrelevant", "related", "partial", "close", "exact"), 4),
        ("complement", (), 2),
        ("1", ("1", "2", "3"), 1),
        ("E", ("no", "yes", "maybe"), None),
        ("good", ("bad", "fair"), None),
    ],
)
def test_grades_by_name_and_esci_s_letters(
    tmp_path: Path, grade: str, labels: tuple[str, ...], expected: int | None
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"search;item;judgment\na;b;{grade}\n")
    columns = Columns("search", "item", "judgment", ";")
    if expected is None:
        with pytest.raises(ModelError, match=f"judgment '{grade}' is not .* or one of {', '.join(labels)}"):
            read_labelled(file, grades=len(labels), labels=labels, columns=columns)
    else:
        found = read_labelled(file, grades=len(labels) or 5, labels=labels, columns=columns)
        assert found == [LabelledPair("a", "b", expected)]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        read_labelled(tmp_path, grades=5)
