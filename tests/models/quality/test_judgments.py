"""Judgments of other programs, as they write them, give the same pairs as ours; what is wrong is named."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from headroom import ModelError
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


@pytest.mark.parametrize("name", ["qrels.txt", "a.qrels", "qrels.dl20-passage", "qrels.txt.gz", "beir.tsv"])
def test_qrels_with_the_texts_of_their_ids(tmp_path: Path, texts: Columns, name: str) -> None:
    data = (BEIR if name == "beir.tsv" else QRELS).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_labelled(tmp_path / name, grades=4, columns=texts) == PAIRS


def test_texts_of_beir_and_of_ms_marco(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text(QRELS)
    (tmp_path / "queries.tsv").write_text('7\tangle bracket\n8\tusb lamp\n9\t"Hello" said\n')  # no header
    corpus = [
        {"_id": key, "title": title, "text": "…"}
        for key, title in (("B07", PAIRS[0].title), ("B08", "Wood screws"))
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    columns = Columns(queries=str(tmp_path / "queries.tsv"), titles=str(tmp_path / "corpus.jsonl"))
    assert read_labelled(tmp_path / "qrels.txt", grades=4, columns=columns) == PAIRS


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.parquet", "corpus.csv"])
def test_a_document_without_a_title_has_its_text(tmp_path: Path, name: str) -> None:
    """As all of BEIR's FiQA and some of its other corpora."""
    (tmp_path / "qrels.txt").write_text(QRELS)
    (tmp_path / "queries.csv").write_text(QUERIES)
    corpus = [
        {"_id": "B07", "title": "", "text": "Simpson 12-Gauge Angle"},
        {"_id": "B08", "title": "Wood screws", "text": "a box"},
    ]
    file = tmp_path / name
    if name.endswith("jsonl"):
        del corpus[0]["title"]
        file.write_text("".join(json.dumps(row) + "\n" for row in corpus))
    elif name.endswith("parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(corpus), file)
    else:
        file.write_text("\n".join(["_id,title,text", *(",".join(row.values()) for row in corpus)]) + "\n")
    columns = Columns(queries=str(tmp_path / "queries.csv"), titles=str(file))
    assert read_labelled(tmp_path / "qrels.txt", grades=4, columns=columns) == PAIRS


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
        ("a.txt", "7 0 B10 3\n", r"line 1: .*titles\.csv has no text for B10"),
        ("a.txt", "7 0 B07 nan\n", "line 1: grade 'nan' is not a whole number from 0 to 3"),
        ("a.txt", "7 0 B07 0.5\n", "line 1: grade '0.5' is not a whole number"),
        ("a.txt", "", "holds no pairs"),
        ("a.json", "{}", "no judgment list of the Search Relevance Workbench"),
        (
            "a.json",
            '{"judgmentRatings": [{"query": "a"}]}',
            "no judgment list of the Search Relevance Workbench",
        ),
        ("a.json", "[", r"a\.json is not valid JSON"),
        ("a.csv", "query_id,docid\n7,B07\n", "line 1: there is no column grade"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, texts: Columns, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        read_labelled(tmp_path / name, grades=4, columns=texts)


def test_ids_without_texts_say_which_files_are_needed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(QRELS)
    (tmp_path / "a.csv").write_text(QUEPID)
    with pytest.raises(
        ModelError, match=r"give --queries, a file with .* and --titles, a file with the text"
    ):
        read_labelled(tmp_path / "a.txt", grades=4)
    with pytest.raises(ModelError, match="give --titles, a file with the text of each docid"):
        read_labelled(tmp_path / "a.csv", grades=4)
    (tmp_path / "other.csv").write_text("sku,label\n1,2\n")
    with pytest.raises(ModelError, match=r"there is no column with ids .* found sku, label"):
        read_labelled(tmp_path / "a.csv", grades=4, columns=Columns(titles=str(tmp_path / "other.csv")))
