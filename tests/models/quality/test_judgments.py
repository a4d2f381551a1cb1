"""Judgments of other programs, as they write them, give the same pairs as ours; what is wrong is named."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import pytrec_eval
from pyarrow import parquet

from headroom import ModelError
from headroom.models.api.data import source_of
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.labelled import Columns, LabelledPair, read_labelled, read_pairs

PAIRS = [
    LabelledPair("angle bracket", "Simpson 12-Gauge Angle", 3),
    LabelledPair("angle bracket", "Wood screws", 0),
    LabelledPair("usb lamp", "Wood screws", 1),
]
TITLES = "docid,title\nB07,Simpson 12-Gauge Angle\nB08,Wood screws\nB09,never judged\n"
QUERIES = "query_id,query\n7,angle bracket\n8,usb lamp\n"
QUEPID = (
    "query,docid,rating\nangle bracket,B07,3\nangle bracket,B08,0.0\n"
    '"never, rated"\nusb lamp,B08,1\nusb lamp,B09,\n'
)
"""As its export of ratings: a query without ratings is a row of one cell, an unrated document has none."""

WORKBENCH = {
    "name": "Imported Judgments",
    "type": "IMPORT_JUDGMENT",
    "judgmentRatings": [
        {
            "query": "angle bracket",
            "ratings": [{"docId": "B07", "rating": "3.000"}, {"docId": "B08", "rating": "0.000"}],
        },
        {"query": "usb lamp", "ratings": [{"docId": "B08", "rating": 1}]},
    ],
}
QRELS = "7 0 B07 3\n7 0 B08 -2\n8\tQ0\tB08  1\n"
"""Grades below 0 are spam in TREC's web tracks."""

BEIR = "query-id\tcorpus-id\tscore\n7\tB07\t3\n7\tB08\t0\n8\tB08\t1\n"


@pytest.fixture
def texts(tmp_path: Path) -> Columns:
    (tmp_path / "titles.csv").write_text(TITLES)
    (tmp_path / "queries.csv").write_text(QUERIES)
    return Columns(queries=str(tmp_path / "queries.csv"), titles=str(tmp_path / "titles.csv"))


def only_titles(texts: Columns) -> Columns:
    return Columns(titles=texts.titles)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("quepid.csv", QUEPID),
        ("workbench.json", json.dumps(WORKBENCH)),
        ("answer.json", json.dumps({"hits": {"hits": [{"_index": "judgment", "_source": WORKBENCH}]}})),
    ],
)
def test_ratings_of_quepid_and_of_the_workbench(tmp_path: Path, texts: Columns, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_labelled(tmp_path / name, grades=4, columns=only_titles(texts)) == PAIRS


@pytest.mark.parametrize("name", ["qrels.dl20-passage", "beir.tsv"])
def test_qrels_with_the_texts_of_their_ids(tmp_path: Path, texts: Columns, name: str) -> None:
    (tmp_path / name).write_text(BEIR if name == "beir.tsv" else QRELS)
    assert read_labelled(tmp_path / name, grades=4, columns=texts) == PAIRS


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.csv"])
def test_a_document_of_beir_is_its_title_and_its_text(tmp_path: Path, name: str) -> None:
    """What BEIR and MTEB feed a model; one without a title, as all of FiQA's, is its text, and the next row
    means the same as it would in another file."""
    (tmp_path / "qrels.txt").write_text(QRELS)
    (tmp_path / "queries.csv").write_text(QUERIES)
    corpus = [
        {"_id": "B07", "title": "", "text": "Simpson 12-Gauge Angle"},
        {"_id": "B08", "title": "Wood", "text": "screws"},
    ]
    file = tmp_path / name
    if "json" in name:
        del corpus[0]["title"]
        file.write_text("".join(json.dumps(row) + "\n" for row in corpus))
    else:
        file.write_text("\n".join(["_id,title,text", *(",".join(row.values()) for row in corpus)]) + "\n")
    columns = Columns(queries=str(tmp_path / "queries.csv"), titles=str(file))
    assert read_labelled(tmp_path / "qrels.txt", grades=4, columns=columns) == PAIRS


def test_what_is_judged_twice_counts_once_as_in_trec_eval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same file twice moved NDCG@10 from 0.514 to 0.364."""
    rng = np.random.default_rng(4)
    grades = rng.integers(0, 4, (30, 12))
    scores = rng.random((30, 12))
    lines = [f"q{i},d{j},{grades[i, j]}" for i in range(30) for j in range(12)]
    (tmp_path / "once.csv").write_text("\n".join(["query,title,grade", *lines]) + "\n")
    (tmp_path / "twice.csv").write_text("\n".join(["query,title,grade", *lines, *lines]) + "\n")
    pairs = read_labelled(tmp_path / "twice.csv", grades=4)
    assert pairs == read_labelled(tmp_path / "once.csv", grades=4)
    assert "twice.csv: 360 rows judge pairs again; each pair counts once\n" in capsys.readouterr().err

    def number(text: str) -> int:
        return int(text[1:])

    judged = {f"q{i}": {f"d{j}": int(2 ** grades[i, j] - 1) for j in range(12)} for i in range(30)}
    ranked = {f"q{i}": {f"d{j}": float(scores[i, j]) for j in range(12)} for i in range(30)}
    oracle = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(ranked)
    ours = Evaluation(pairs, np.array([scores[number(pair.query), number(pair.title)] for pair in pairs]))
    assert ours.metrics()["ndcg10"] == pytest.approx(np.mean([q["ndcg_cut_10"] for q in oracle.values()]))


def test_of_different_grades_of_a_pair_the_lower_median_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.csv"
    rows = [*((1, "a"), (3, "a"), (2, "a"), (0, "a")), *((2, "b"), (2, "b"))]
    file.write_text("query,title,grade\n" + "".join(f"lamp,{title},{grade}\n" for grade, title in rows))
    settled = [LabelledPair("lamp", "a", 1), LabelledPair("lamp", "b", 2)]
    assert read_labelled(file, grades=4) == settled
    assert "1 of them with the lower median of different grades" in capsys.readouterr().err
    in_memory = source_of([("lamp", title, grade) for grade, title in rows], Columns())
    assert read_labelled(in_memory, grades=4) == settled


def test_two_documents_of_one_title_are_two(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("query,product_id,product_title,esci_label\nlamp,1,Lamp,E\nlamp,2,Lamp,I\n")
    assert read_labelled(file, grades=4) == [LabelledPair("lamp", "Lamp", 3), LabelledPair("lamp", "Lamp", 0)]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz"])
def test_a_pointer_of_git_lfs_is_named_as_such(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(ModelError, match=rf"{name} is a pointer of Git LFS, .*; run git lfs pull"):
        read_labelled(tmp_path / name, grades=4)


def test_the_published_files_of_esci(tmp_path: Path) -> None:
    """One product id has another title in another locale."""
    examples = {
        "example_id": [0, 1, 2],
        "query": ["angle bracket", "angle bracket", "usb lamp"],
        "query_id": [7, 7, 8],
        "product_id": ["B07", "B08", "B08"],
        "product_locale": ["us", "us", "jp"],
        "esci_label": ["E", "I", "C"],
    }
    products = {
        "product_id": ["B08", "B08", "B07"],
        "product_title": ["木ねじ", "Wood screws", "Simpson 12-Gauge Angle"],
        "product_locale": ["jp", "us", "us"],
    }
    parquet.write_table(pyarrow.table(examples), tmp_path / "examples.parquet")
    parquet.write_table(pyarrow.table(products), tmp_path / "products.parquet")
    found = read_labelled(
        tmp_path / "examples.parquet", grades=4, columns=Columns(titles=str(tmp_path / "products.parquet"))
    )
    assert found == [*PAIRS[:2], LabelledPair("usb lamp", "木ねじ", 1)]

    joined = examples | {"product_title": [pair.title for pair in PAIRS]}
    parquet.write_table(pyarrow.table(joined), tmp_path / "joined.parquet")
    assert read_labelled(tmp_path / "joined.parquet", grades=4) == PAIRS
    assert read_pairs(tmp_path / "joined.parquet") == [(pair.query, pair.title) for pair in PAIRS]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "7 0 B07 3\n7 0 B07\n", "line 2: 3 fields; a line of qrels has 4"),
        ("a.txt", "9 0 B07 3\n", r"line 1: .*queries\.csv has no text for 9"),
        ("a.txt", "7 0 B07 nan\n", "line 1: grade 'nan' is not a whole number from 0 to 3"),
        ("a.json", "{}", "no judgment list of the Search Relevance Workbench"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, texts: Columns, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        read_labelled(tmp_path / name, grades=4, columns=texts)
