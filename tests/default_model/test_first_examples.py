"""What a person tries first comes out as that person would grade it, as far as the shipped model can."""

import numpy as np
import pytest

from default_model.checks import contradiction_answers, read_contradictions
from headroom.models.classifier import Classifier
from headroom.models.scores import Scores


@pytest.fixture(scope="module")
def shipped() -> Classifier:
    return Classifier.load(device="cpu")


def test_the_first_example_of_the_readme_and_of_the_page(shipped: Classifier) -> None:
    titles = [
        "Logitech M185 Wireless Mouse, 2.4 GHz with USB Receiver, Black",
        "Wired optical mouse with 1.8 m USB cable",
        "Mouse pad, 300 × 250 mm, non-slip rubber base",
        "Cotton dish towel, set of 4",
    ]
    scores = shipped.score("wireless mouse", titles)
    assert scores.grade[0] == 4
    assert scores.grade[-1] == 0
    assert scores.raw_score[0] == scores.raw_score.max()
    assert shipped.score("wireless mouse", ["Logitech M185 Wireless Mouse"]).grade.tolist() == [4]


def test_a_title_that_contradicts_the_query_is_ranked_below_the_one_that_fits(shipped: Classifier) -> None:
    first, *_ = contradiction_answers(lambda pairs: shipped.score(list(pairs)))
    assert first.value >= 0.93, first


def test_a_model_that_grades_all_alike_tells_no_contradiction_and_calls_all_exact() -> None:
    first, clear, exact, close = contradiction_answers(
        lambda pairs: Scores.from_logits(np.tile(np.array([0, 0, 0, 0, 9], np.float32), (len(pairs), 1)))
    )
    assert (first.value, clear.value, exact.value, close.value) == (0, 0, 1, 1)
    assert [answer.holds for answer in (first, clear, exact, close)] == [False, False, False, True]


def test_each_language_and_kind_has_enough_contradictions_to_count() -> None:
    rows = read_contradictions()
    assert len(rows) == 300
    assert {row.language for row in rows} == {"en", "ko", "zh"}
    for kind in {row.kind for row in rows}:
        assert sum(row.kind == kind for row in rows) >= 20
    assert len({(row.query, row.fits, row.contradicts) for row in rows}) == 300
