"""Which layers know which words matter, on a model with a layer that does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models import Classifier
from models.condense.loss import jensen_shannon
from models.quality.labelled import LabelledPair
from models.study import words
from models.study.base import Judged
from models.study.duration import stages
from models.study.effort import left_out
from models.study.study import Study
from models.study.words.compute import measure
from tests.checkpoints import random_model, write_vocabulary
from tests.models.study.data import WORDS, study


def long_queries(queries: int = 14) -> Judged:
    """Queries of four words and five titles of different grades."""
    rng = np.random.default_rng(0)
    rows = [
        LabelledPair(" ".join(of_query), " ".join(rng.choice(WORDS, 4)), grade)
        for of_query in [rng.permutation(WORDS)[:4].tolist() for _ in range(queries)]
        for grade in range(5)
    ]
    return Judged.of(rows, "pairs.csv")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of 3 layers, of which layer 1 writes nothing by its attention."""
    directory = tmp_path_factory.mktemp("idle")
    model = random_model(3)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight.zero_()
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return study(Classifier.load(directory, dtype="float32"), directory, long_queries())


def test_a_layer_that_does_nothing_knows_nothing_about_words(asked: Study) -> None:
    result = words.run(asked)
    found = result.json["words"]
    assert found["queries"] == len(asked.data.queries)
    assert (found["mean_words"], found["mean_kept"]) == (4, 2)
    rows = {row["layer"]: row for row in found["layers"]}
    assert sorted(rows) == [0, 1, 2]
    assert rows[1]["delta"]["ndcg10"] == 0
    assert rows[1]["interval"]["ndcg10"] == [0, 0]
    assert rows[1]["agreement"] == pytest.approx(1)
    assert rows[0]["agreement"] < 0.99
    for row in rows.values():
        low, high = row["interval"]["ndcg10"]
        assert low <= row["delta"]["ndcg10"] <= high
    assert "layer" in result.conclusion
    (section,) = result.sections
    assert len(section.tables[0].rows) == 3
    section.figures[0].draw()


def test_the_words_that_are_kept_are_those_whose_absence_costs_most(asked: Study) -> None:
    one = replace(asked, effort=replace(asked.effort, condensed_queries=10))
    assert measure(one).queries == 10
    query = asked.data.queries[0]
    titles = [title for of_query, title in asked.data.pairs if of_query == query]
    parts = query.split()
    texts = [query, *(" ".join(parts[:i] + parts[i + 1 :]) for i in range(4))]
    whole, *others = (
        asked.classifier.score([(text, title) for title in titles]).probabilities.astype(np.float64)
        for text in texts
    )
    losses = [float(jensen_shannon(whole, other).mean()) for other in others]
    kept = [parts[i] for i in sorted(np.argsort(losses)[2:].tolist())]
    (found,) = [q for q in words.compute._queries(asked) if q.text == query]
    assert found.best(np.array(losses)) == " ".join(kept)


def test_too_few_long_queries_are_said_and_do_not_stop_a_study_of_everything(
    asked: Study, tmp_path: Path
) -> None:
    few = study(asked.classifier, tmp_path, long_queries(4))
    result = words.run(few)
    assert result.json["words"] == {"queries": 4, "layers": []}
    assert "at least 10" in result.conclusion


def test_its_duration_and_what_quick_leaves_out_are_told(asked: Study) -> None:
    assert [stage for stage, _ in stages("words", asked)] == ["words left out", "condensed queries"]
    assert "25 queries condensed instead of 150" in left_out("words")
