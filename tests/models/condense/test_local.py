"""Condensing on a real, small network: scores, attention, masks, one-label models, Korean."""

import numpy as np
import pytest

from headroom.models.classifier import Classifier
from headroom.models.condense.local import condense
from headroom.models.condense.search import METHODS, Method, Task, jensen_shannon
from headroom.models.condense.words import read_words
from headroom.models.masks.head_mask import HeadMask

QUERY = "where is a steel angle bracket for the deck?"
TITLES = [
    "Simpson Strong-Tie 12-Gauge Angle",
    "wood deck screws",
    "steel bracket, black " * 30,
    "lamp",
    "lamp",
]


def task(query: str = QUERY, **options: object) -> Task:
    return Task(query, read_words(query), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_the_losses_are_those_of_scoring_the_queries(clf: Classifier, method: Method) -> None:
    mask = HeadMask.parse("1.0-2", layers=3, heads=4)
    result = condense(clf, task(method=method, max_words=3), TITLES, mask)

    assert len(result.query.split()) == sum(result.kept) == 3
    whole = clf.score([(QUERY, title) for title in TITLES], mask).probabilities.astype(np.float64)
    for length in result.path:
        if length.measured:
            shorter = clf.score([(length.query, title) for title in TITLES], mask).probabilities
            expected = jensen_shannon(whole, shorter.astype(np.float64)).mean()
            assert length.loss == pytest.approx(expected, abs=1e-4)
    assert result.path[len(result.path) - 3].query == result.query


def test_a_one_label_model(one_label: Classifier) -> None:
    clf = one_label
    result = condense(clf, task(max_words=2), TITLES)

    pair = [(QUERY, title) for title in TITLES], [(result.query, title) for title in TITLES]
    whole, shorter = (clf.relevance(clf.score(pairs).score).astype(np.float64) for pairs in pair)
    two = [np.stack([1 - p, p], axis=1) for p in (whole, shorter)]
    assert result.loss == pytest.approx(jensen_shannon(*two).mean(), abs=1e-4)
