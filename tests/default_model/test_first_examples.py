"""What a person tries first comes out as that person would grade it, as far as the shipped model can."""

import pytest

from default_model.checks import contradiction_answers
from headroom.models.classifier import Classifier


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
