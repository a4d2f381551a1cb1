"""Corrections and tests against what can be counted by hand."""

from itertools import product

import numpy as np
import pytest

from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.metrics import GRADED
from headroom.models.study import statistics
from headroom.models.study.pairs import Judged
from headroom.models.study.statistics import (
    adjusted_p,
    holm,
    permutation_p,
    permutations_for,
    swap_p,
)
from tests.models.study.data import judged


def graded(data: Judged, seed: int, noise: float = 1.0) -> GradedEvaluation:
    rng = np.random.default_rng(seed)
    logits = 2 * np.eye(5)[data.grade] + noise * rng.gumbel(size=(len(data), 5))
    powers = np.exp(logits)
    probabilities = powers / powers.sum(1, keepdims=True)
    return GradedEvaluation(data.labelled, probabilities, probabilities @ np.arange(5))


def test_swapping_queries_finds_the_exact_p_of_few_queries() -> None:
    data = judged(queries=8)
    whole, masked = graded(data, 0), graded(data, 1, noise=3.0)
    seen = masked.metrics()["accuracy"] - whole.metrics()["accuracy"]
    sums = np.stack([whole.sums, masked.sums])
    exact = 0
    for swap in product((0, 1), repeat=8):
        mixed = [sum(sums[s ^ side][q] for q, s in enumerate(swap)) for side in (0, 1)]
        accuracy = [np.trace(m[:25].reshape(5, 5)) / m[:25].sum() for m in mixed]
        exact += abs(accuracy[1] - accuracy[0]) >= abs(seen) - 1e-12
    p = swap_p(whole, [masked], draws=20_000, seed=0)[0, 0]
    assert p == pytest.approx(exact / 2**8, abs=0.02)


def test_one_head_of_a_thousand_can_be_found() -> None:
    """p-values are never below 1 / (1 + draws), and are multiplied by the heads and the metrics."""
    data = judged(queries=60)
    whole, worse = graded(data, 0), graded(data, 1, noise=30.0)
    found = swap_p(whole, [worse], draws=permutations_for(1000, len(GRADED.names)), seed=0)
    others = np.ones((999, len(GRADED.names)))
    assert adjusted_p(np.concatenate([found, others]))[0] < 0.05


@pytest.mark.parametrize("size", [1, 2, 12, 144])
def test_holm_corrects_as_statsmodels_does(size: int) -> None:
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(size).beta(0.3, 2, size)
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert holm([np.nan, 0.01]).tolist() == [1.0, 0.02]


def test_an_undefined_metric_is_no_evidence_against_chance() -> None:
    assert np.isnan(permutation_p(np.nan, np.zeros(99)))
    names = [f"query {number}" for number in range(12)]
    data = Judged([LabelledPair(name, "title", 2) for name in names], "no query ranks its titles")

    p = swap_p(graded(data, 0), [graded(data, 1, noise=5.0)], draws=99, seed=0)

    assert p[0, GRADED.names.index("ndcg10")] == 1


def test_of_the_heads_that_are_found_5_percent_are_false() -> None:
    """30 of 144 heads change all metrics. Adjusted over heads and metrics together, 14 % would be false."""
    rng = np.random.default_rng(0)
    false = []
    for _ in range(200):
        p = rng.random((144, 4))
        p[:30] *= 1e-6
        found = statistics.adjusted_p(p) <= 0.05
        assert found[:30].all()
        false.append(found[30:].sum() / found.sum())
    assert np.mean(false) < 0.06
