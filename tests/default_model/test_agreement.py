"""How smaller networks are measured without judgments, and the names that they learn from."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from default_model.agreement import ndcg10, strata
from default_model.asked_names import FILES, AskedNames
from default_model.groups import fold_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training data of every fold: some names and products, and lists of each set."""
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt") as file:
        rows = [("dbpedia_entity_v2", 2, "Oregon Zoo"), ("dbpedia_entity_v2", 0, "Oregon Test")]
        rows += [("dbpedia_entity_v2", 4, title) for title in ("Oregon Ducks", *"abcdefg")]
        rows += [("esci_extra", 3, "Red lamp"), ("esci_extra", 3, "Trained lamp")]
        rows += [("esci_extra", 9, "Trained lamp"), ("esci_extra", 1, "Test lamp")]
        for source, fold, title in rows:
            pair = {"query": "q", "title": title, "grade": 1, "source": source, "fold": fold}
            file.write(json.dumps(pair) + "\n")
    for name in ("sae4k", "stylekqc", "openbg_slice", "dureader_demo", "csl"):
        (tmp_path / "multilingual" / name).mkdir(parents=True)
        language = "ko" if name in ("sae4k", "stylekqc") else "zh"
        with gzip.open(tmp_path / "multilingual" / name / "pairs.jsonl.gz", "wt") as file:
            for number in range(40):
                pair = {"query": f"{name} {number}", "title": f"{number}", "grade": 4, "source": name}
                file.write(json.dumps(pair | {"lang": language}) + "\n")
    return tmp_path


def test_what_networks_are_measured_on_was_trained_on_by_none(data: Path) -> None:
    (data / "test.json").write_text(json.dumps([{"qText": "who?", "answers": ["Me"]}]))
    found = strata(data, data / "test.json")
    assert (found["products"].titles, len(found["products"].own)) == (["Red lamp"], 1)
    assert found["entities"].own == {"who?": ["Me"]}
    assert sorted(found["entities"].titles) == ["Me", "Oregon Zoo"]
    for name, sets in (("Korean", 2), ("Chinese", 3)):
        queries = list(found[name].own)
        assert {fold_of(query) for query in queries} == {2, 3}
        assert len({query.split()[0] for query in queries}) == sets


def test_no_name_of_another_fold_is_trained_on(data: Path) -> None:
    for file in FILES:
        (data / file).write_text(json.dumps([{"qText": "where is the oregon trail?", "answers": ["Oregon"]}]))
    drawer = AskedNames(data, data)
    rng = random.Random(0)
    names = {example.title for _ in range(200) for example in drawer.group(rng)}
    assert "Oregon Ducks" in names
    assert names.isdisjoint({"Oregon Zoo", "Oregon Test"})


def test_ndcg_of_any_gains_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    for titles in (1, 3, 10, 25):
        gains = rng.uniform(0, 4, titles)
        scores = rng.normal(size=titles)
        expected = ndcg_score([gains], [scores], k=10) if titles > 1 else 1.0
        assert ndcg10(gains, scores) == pytest.approx(expected)
    assert ndcg10(np.zeros(3), np.arange(3.0)) == 1
