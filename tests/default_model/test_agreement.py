"""How smaller networks are measured without judgments, and the questions that they learn from."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from default_model.agreement import TITLES, Stratum, losses, ndcg10, strata
from default_model.asked_names import FILES, AskedNames
from default_model.groups import fold_of

QUESTIONS = {
    "what does jamaican people speak?": ["Jamaican Creole English Language", "Jamaican English"],
    "who plays ken barlow in coronation street?": ["Tony Warren"],
    "where is the oregon trail?": ["Oregon"],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training data of these questions, of which the validation file has the last, and of some names."""
    rows = [{"qText": question, "answers": answers} for question, answers in QUESTIONS.items()]
    for name, part in zip(FILES, (rows[:2], rows[2:]), strict=True):
        (tmp_path / name).write_text(json.dumps(part))
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


def test_a_question_comes_with_its_answers_with_names_that_share_a_word_and_with_others(data: Path) -> None:
    drawer = AskedNames(data, data)
    rng = random.Random(0)
    seen = set[str]()
    for _ in range(200):
        group = drawer.group(rng)
        (question,) = {example.query for example in group}
        titles = [example.title for example in group]
        answers = [example.title for example in group if np.argmax(example.target) == 4]
        assert len(titles) == len(set(titles)) <= 6
        assert set(answers) == set(titles) & set(QUESTIONS[question])
        assert answers
        if question.startswith("where"):
            assert "Oregon Ducks" in titles  # it shares a word
        seen |= {question, *titles}
    assert seen.issuperset(QUESTIONS)
    assert "Oregon Zoo" not in seen  # of a fold that nothing is trained on


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


def test_ndcg_of_any_gains_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    for titles in (1, 3, 10, 25):
        gains = rng.uniform(0, 4, titles)
        scores = rng.normal(size=titles)
        expected = ndcg_score([gains], [scores], k=10) if titles > 1 else 1.0
        assert ndcg10(gains, scores) == pytest.approx(expected)
    assert ndcg10(np.zeros(3), np.arange(3.0)) == 1


def test_a_network_that_ranks_as_the_model_does_loses_nothing() -> None:
    gains = [np.array([3.0, 1.0, 0.0]), np.array([0.5, 2.0])]
    assert losses(gains, [2 * values - 1 for values in gains]).tolist() == [0, 0]
    assert (losses(gains, [-values for values in gains]) > 0.1).all()


def test_a_query_is_asked_with_its_own_titles_first_and_those_that_share_most() -> None:
    pool = [f"lamp {number}" for number in range(40)] + [f"desk {number}" for number in range(40)]
    (asked,) = Stratum("en", {"red lamp": ["red lamp, small"]}, pool).asked(random.Random(0))
    assert asked.query == "red lamp"
    assert len(set(asked.titles)) == TITLES
    assert asked.titles[0] == "red lamp, small"
    assert all(title.startswith("lamp") for title in asked.titles[1:11])
    assert any(title.startswith("desk") for title in asked.titles)
