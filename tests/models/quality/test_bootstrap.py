"""Intervals that cover what they say, and p-values that agree with them."""

from dataclasses import replace

import numpy as np
import pytest

from headroom.models.arrays import Floats
from headroom.models.quality.bootstrap import (
    Draws,
    Estimate,
    draws,
    estimate_of,
    resample,
    standard_errors,
)
from headroom.models.quality.graded import of_counted_grades
from headroom.models.quality.metrics import GRADED

GRADES = 5
QUERIES = 80
SIZES = np.array([1, 1, 2, 2, 3, 4, 5, 7, 9, 10, 12, 14, 16, 19, 22, 26, 30, 36, 44, 55, 70])
"""Titles of a query, as unequal as those of the sample data."""
COMMON = np.log(np.array([0.14, 0.12, 0.05, 0.21, 0.48]))


def population(rng: np.random.Generator, queries: int) -> tuple[Floats, Floats]:
    """Sums by query of a model and of the same model under a mask that harms some queries much, most
    little."""
    sizes = rng.choice(SIZES, queries)
    query = np.repeat(np.arange(queries), sizes)
    places = np.arange(GRADES)
    truth = (
        COMMON + rng.normal(0, 0.4, queries)[query, None] * places + rng.gumbel(size=(len(query), 5))
    ).argmax(1)
    right = np.eye(GRADES)[truth]
    skill = 1.2 + rng.normal(0, 0.8, queries)[query]
    logits = rng.gumbel(size=(len(query), GRADES)) + skill[:, None] * right
    harm = (rng.random(queries) < 0.3) * rng.normal(0.3, 0.8, queries)
    masked = logits + rng.normal(0, 0.3, logits.shape) - harm[query, None] * right
    both = []
    ndcg = rng.beta(6, 2, queries)
    for scores, ranking in ((logits, ndcg), (masked, ndcg - 0.2 * harm * rng.random(queries))):
        sums = np.zeros((queries, GRADES**2 + 2))
        np.add.at(sums, (query, truth * GRADES + scores.argmax(1)), 1)
        sums[:, -2], sums[:, -1] = np.where(sizes > 1, ranking, 0), sizes > 1
        both.append(sums)
    return both[0], both[1]


def values(sums: Floats) -> Floats:
    """Metrics of added-up sums: (..., 27) → (..., 4)."""
    ndcg = sums[..., -2] / sums[..., -1]
    return np.concatenate([of_counted_grades(sums[..., :-2], GRADES), ndcg[..., None]], axis=-1)


def drawn(sums: Floats, counts: Floats) -> dict[str, Draws]:
    def statistics(rows: Floats) -> dict[str, Floats]:
        return dict(zip(GRADED.names, values(rows @ sums).T, strict=True))

    return draws(statistics, counts, lambda _: counts.shape[1])


def change(before: Floats, after: Floats, counts: Floats) -> list[Estimate]:
    first, second = drawn(before, counts), drawn(after, counts)
    deltas = [second[name] - first[name] for name in GRADED.names]
    return [estimate_of(delta, counts) for delta in deltas]


@pytest.mark.more
@pytest.mark.slow
def test_an_interval_covers_the_truth_in_93_to_97_percent_of_1000_data_sets() -> None:
    whole = population(np.random.default_rng(0), 60_000)
    truth = values(whole[1].sum(0)) - values(whole[0].sum(0))
    counts = resample(QUERIES, 300, 0)
    covered = np.zeros(len(truth))
    for seed in range(1000):
        for i, found in enumerate(change(*population(np.random.default_rng([1, seed]), QUERIES), counts)):
            interval = found.interval()
            covered[i] += interval.low <= truth[i] <= interval.high
    assert (covered >= 930).all(), dict(zip(GRADED.names, covered, strict=True))
    assert (covered <= 970).all(), dict(zip(GRADED.names, covered, strict=True))


def test_p_and_interval_tell_the_same() -> None:
    counts = resample(QUERIES, 999, 3)
    for found in change(*population(np.random.default_rng(3), QUERIES), counts):
        mirrored = replace(found, value=-found.value, t=-found.t[::-1], by_query=-found.by_query)
        low, high = found.lower_bound(0.05), -mirrored.lower_bound(0.05)
        assert found.p_above(low - 1e-6) <= 0.055
        assert found.p_above(low + 1e-3) > 0.05
        assert found.p_below(high + 1e-6) <= 0.055
        assert found.p_above(found.value - 1) < 0.01 < 0.9 < found.p_above(found.value + 1)


def test_a_relative_change_is_relative_to_the_resampled_base() -> None:
    before, after = population(np.random.default_rng(6), QUERIES)
    counts = resample(QUERIES, 300, 0)
    first, second = (drawn(sums, counts)["accuracy"] for sums in (before, after))
    relative = second.relative_to(first)
    assert relative.values == pytest.approx(second.values / first.values - 1)
    errors = standard_errors(relative.influences, counts)
    assert errors[0] == pytest.approx(relative.values[1:].std(), rel=0.15)
