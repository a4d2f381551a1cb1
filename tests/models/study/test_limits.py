"""A quick study takes as many queries as a pilot asks for, and says before it runs what it cannot show."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study.limits import MOST, PAIRS, limits, shortened
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner
from headroom.models.study.study import QUICK, QUICK_TITLES, Study
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


@pytest.mark.parametrize("kind", ["single", "layers", "random"])
def test_an_easy_margin_takes_the_pilots_queries_alone(clf: Classifier, tmp_path: Path, kind: str) -> None:
    short = shortened(kind, study(clf, 0.5, tmp_path))
    assert short.effort is QUICK
    assert PAIRS <= len(short.data) < 2 * PAIRS
    assert not limits(kind, short)


def test_a_hard_margin_takes_more_queries_up_to_a_bound_and_says_what_they_cannot_show(
    clf: Classifier, tmp_path: Path
) -> None:
    whole = study(clf, 0.001, tmp_path)
    pilot = shortened("single", study(clf, 0.5, tmp_path))
    short = shortened("single", whole)
    (sentence,) = limits("single", short)
    assert MOST * PAIRS <= len(short.data) < MOST * PAIRS + QUICK_TITLES
    assert set(pilot.data.queries) < set(short.data.queries)
    assert "cannot show that a head alone is harmless with a margin of 0.001" in sentence


def test_the_held_out_pairs_are_never_cut(clf: Classifier, tmp_path: Path) -> None:
    """On 3.4 titles of each query a search showed what all titles of the same queries did not."""
    whole = study(clf, 0.02, tmp_path)
    short = shortened("search", whole)
    assert short.holdout is whole.holdout


def test_too_few_queries_are_all_taken_and_the_limit_says_which_margin_they_can_show(
    clf: Classifier, tmp_path: Path
) -> None:
    """The sample's 190 queries cannot show that one of 12 layers costs less than 0.02."""
    few = replace(study(clf, 0.02, tmp_path), data=judged("data", 2, queries=120, titles=18))
    short = shortened("layers", few)
    assert len(short.data.queries) == 120
    assert len(short.data) == 120 * QUICK_TITLES
    (sentence,) = limits("layers", short)
    assert "cannot show that a layer alone is harmless with a margin of 0.02" in sentence
    margin = float(sentence.split("a loss below ")[1].split()[0])
    (sentence,) = limits("layers", shortened("layers", replace(few, margin=margin)))
    assert sentence.startswith(f"This run will hardly show that a layer alone is harmless (margin {margin})")
    assert sentence.endswith(", and this run takes 120.")
    needed = int(
        sentence.partition("takes about ")[2].removesuffix(", and this run takes 120.").replace(",", "")
    )
    for times, expected in ((0.9, 1), (1.1, 0)):  # the needed queries fall about as the margin's square
        easier = replace(few, margin=times * margin * (needed / 120) ** 0.5)
        assert len(limits("layers", shortened("layers", easier))) == expected


def test_kinds_that_show_no_harmlessness_take_no_pilot(clf: Classifier, tmp_path: Path) -> None:
    whole = study(clf, 0.001, tmp_path)
    for kind in ("roles", "similarity"):
        short = shortened(kind, whole)
        assert not short.too_hard
        assert len(short.data) < 2 * PAIRS
