"""How many pairs a quick study takes, and what a study says before it runs that it cannot show."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study.limits import limits
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner
from headroom.models.study.study import (
    QUICK,
    QUICK_PAIRS,
    QUICK_TEST_PAIRS,
    QUICK_TITLES,
    Study,
    shortened,
)
from tests.checkpoints import load, random_pairs

QUERIES = 1_500


@pytest.fixture(scope="module")
def clf(tiny_checkpoint: Path) -> Classifier:
    return load(tiny_checkpoint)


def judged(name: str, seed: int, queries: int = QUERIES, titles: int = QUICK_TITLES) -> Judged:
    rng = np.random.default_rng(seed)
    pairs = random_pairs(queries * titles, seed)
    rows = [
        LabelledPair(f"{name} {row // titles}", title, int(rng.integers(5)))
        for row, (_, title) in enumerate(pairs)
    ]
    return Judged(rows, f"{name}.csv")


def study(clf: Classifier, margin: float, out: Path) -> Study:
    return Study(clf, judged("data", 1), Runner(clf), out, holdout=judged("holdout", 2), margin=margin)


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        ("single", QUICK_TEST_PAIRS),
        ("layers", QUICK_TEST_PAIRS),
        ("random", QUICK_TEST_PAIRS),
        ("roles", QUICK_PAIRS),
        ("search", QUICK_PAIRS),
    ],
)
def test_a_quick_study_takes_more_pairs_if_its_tests_rest_on_them(
    clf: Classifier, tmp_path: Path, kind: str, pairs: int
) -> None:
    whole = study(clf, 0.5, tmp_path)
    short = shortened(kind, whole)
    assert short.effort is QUICK
    assert pairs <= len(short.data) < pairs + QUICK_TITLES
    assert len(short.data.queries) == len(short.data) // QUICK_TITLES
    assert short.holdout is whole.holdout, "on few held-out titles a search showed what all did not"


@pytest.mark.parametrize("kind", ["single", "layers", "random", "search"])
def test_the_margin_that_a_limit_names_is_one_that_the_queries_can_show(
    clf: Classifier, tmp_path: Path, kind: str
) -> None:
    """The sample's 190 queries cannot show that one of 12 layers costs less than 0.02."""
    few = study(clf, 0.001, tmp_path)
    few = replace(few, data=judged("data", 2, queries=120), holdout=judged("holdout", 3, queries=120))
    (sentence,) = [one for one in limits(kind, few) if "with a margin of" in one]
    assert "harmless" in sentence or "change nothing" in sentence or "good enough" in sentence
    margin = float(sentence.split("a loss below ")[1].split()[0])
    for shown, expected in ((margin, 0), (0.95 * margin, 1)):
        named = limits(kind, replace(few, margin=shown))
        assert sum("with a margin of" in one for one in named) == expected
