"""What is called shown holds, also if the loss sits in queries that are hardly ever in a sample."""

import numpy as np
import pytest
from scipy.stats import binom

from headroom.models.arrays import Floats
from headroom.models.quality.bootstrap import (
    ERROR_RATE,
    Draws,
    Estimate,
    Interval,
    estimate_of,
    minimum_margin,
    minimum_queries,
    resample,
)
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.noninferiority import (
    Loss,
    NonInferiority,
    fixed_sequence,
    loss_of,
    non_inferiority,
)

ROUNDS = 400
NOISE = (0.0, 0.05, 0.12)


def estimated(change: Floats, counts: Floats) -> Estimate:
    """The estimate of the mean of a change by query."""
    queries = len(change)
    means = counts @ change / queries
    return estimate_of(Draws(means, change - change.mean(), queries), counts)


def random_change(rng: np.random.Generator, queries: int, share: float, loss: float, noise: float) -> Floats:
    """The change of each query: a share of them loses `loss`, the others change by noise."""
    others = np.clip(rng.normal(0, noise, queries), -1, 1)
    return np.where(rng.random(queries) < share, -loss, others)


@pytest.mark.parametrize(("queries", "margin"), [(183, 0.02), (736, 0.005)])
@pytest.mark.parametrize("times", [1, 4])
def test_a_loss_of_the_margin_is_called_smaller_in_2_5_percent_of_samples(
    queries: int, margin: float, times: float
) -> None:
    """The loss sits in as few queries as can be, or in some times as many. At 100 queries a bootstrap alone
    let 13 % pass, at a margin of 0.005 and 209 queries 35 %."""
    rng = np.random.default_rng([queries, times])
    counts = resample(queries, 400, 0)
    passed = sum(
        loss_of(
            estimated(random_change(rng, queries, times * margin, 1 / times, rng.choice(NOISE)), counts),
            margin,
            queries=queries,
        ).excluded
        for _ in range(ROUNDS)
    )
    assert passed <= binom.ppf(0.999, ROUNDS, ERROR_RATE)


@pytest.mark.parametrize(
    ("margin", "level", "queries"), [(0.02, 0.025, 183), (0.005, 0.025, 736), (0.02, 0.05 / 12, 272)]
)
def test_unchanged_queries_show_a_margin_from_a_number_on(margin: float, level: float, queries: int) -> None:
    assert minimum_queries(margin, level) == queries
    assert minimum_margin(queries, level) <= margin < minimum_margin(queries - 1, level)
    for count, shows in ((queries, True), (queries - 1, False)):
        unchanged = estimated(np.zeros(count), resample(count, 50, 0))
        assert (unchanged.lower_bound(level) > -margin) == shows
        assert (unchanged.p_above(-margin) <= level) == shows


def test_as_many_queries_as_are_said_to_be_needed_show_it_in_80_percent() -> None:
    """Of a model that loses nothing; the spread is known from outside."""
    rng = np.random.default_rng(2)
    pilot = estimated(random_change(rng, 2000, 0, 0, 0.1), resample(2000, 400, 0))
    needed = loss_of(pilot, 0.02, queries=2000).queries_needed
    assert needed is not None
    counts = resample(needed, 400, 0)
    shown = sum(
        loss_of(estimated(random_change(rng, needed, 0, 0, 0.1), counts), 0.02, queries=needed).excluded
        for _ in range(ROUNDS)
    )
    assert binom.ppf(0.001, ROUNDS, 0.7) <= shown <= binom.ppf(0.999, ROUNDS, 0.9)


def test_one_sided_bounds_are_never_inside_of_the_interval() -> None:
    rng = np.random.default_rng(3)
    counts = resample(300, 400, 0)
    for seed in range(20):
        found = estimated(rng.normal(0, 0.1 * seed, 300) ** 3, counts)
        assert found.lower_bound(ERROR_RATE) <= found.interval().low + 1e-12


def graded(rng: np.random.Generator, pairs: list[LabelledPair], wrong: float) -> GradedEvaluation:
    """A model that knows the grades but for a share of the pairs."""
    truth = np.array([pair.grade for pair in pairs])
    guess = np.where(rng.random(len(pairs)) < wrong, rng.integers(0, 5, len(pairs)), truth)
    return GradedEvaluation(pairs, 0.05 + 0.75 * np.eye(5)[guess], guess.astype(float))


def pairs_of(queries: int, titles: int = 8) -> list[LabelledPair]:
    rng = np.random.default_rng(0)
    grades = rng.integers(0, 5, queries * titles)
    return [LabelledPair(f"query {i // titles}", f"title {i}", int(grade)) for i, grade in enumerate(grades)]


def outcome_of(first: Evaluation, second: Evaluation, margin: float = 0.02) -> NonInferiority:
    counts = resample(first.clusters, 400, 0)
    return non_inferiority(first, first.draws(counts), second.draws(counts), counts, margin)


def test_the_same_answers_pass_and_worse_ones_do_not() -> None:
    pairs = pairs_of(250)
    good = graded(np.random.default_rng(1), pairs, 0.2)
    bad = graded(np.random.default_rng(2), pairs, 0.3)
    same = outcome_of(good, good)
    worse = outcome_of(good, bad)
    assert same.passed
    assert not worse.passed
    assert list(same.losses) == ["accuracy", "qwk", "ndcg10"]
    assert worse.sentence("It").startswith("It loses 0.")
    assert worse.conclusion == "it loses more than 0.02"


def test_a_model_without_skill_has_nothing_to_lose() -> None:
    """A random network kept 1 of 24 heads and was shown to lose less than 0.05."""
    pairs = pairs_of(250)
    random = graded(np.random.default_rng(1), pairs, 1.0)
    outcome = outcome_of(random, random, 0.05)
    assert all(loss.excluded for loss in outcome.losses.values())
    assert not outcome.passed
    assert "not shown to rank better than a random order" in outcome.sentence("It")


def test_the_number_of_queries_is_of_those_that_have_an_order() -> None:
    pairs = pairs_of(200) + [LabelledPair(f"lone {i}", "title", 4) for i in range(60)]
    good = graded(np.random.default_rng(1), pairs, 0.2)
    outcome = outcome_of(good, good)
    assert outcome.queries_that_count == good.ranked_queries == 200
    assert "on 200 queries with titles of different grades (of 260)" in outcome.sentence("It")
    few = outcome_of(
        graded(np.random.default_rng(1), pairs[:800], 0.2), graded(np.random.default_rng(1), pairs[:800], 0.2)
    )
    assert not few.passed
    assert "at least 183 such queries; 100 can show 0.037 at best" in few.conclusion


def test_nothing_is_tested_after_the_first_failure() -> None:
    def outcome(*bounds: float) -> NonInferiority:
        losses = {
            name: Loss(Interval(0.0, -0.1, 0.1), bound, 0.02, 300, 300)
            for name, bound in zip(("qwk", "ndcg10"), bounds, strict=True)
        }
        return NonInferiority(losses, {"ndcg10": Interval(0.2, 0.1, 0.3)}, 0.02, 300)

    outcomes = fixed_sequence([outcome(-0.01, 0.0), outcome(-0.03, 0.0), outcome(-0.01, 0.0)])

    assert [(one.tested, one.passed) for one in outcomes] == [(True, True), (True, False), (False, False)]
    assert not fixed_sequence([outcome(-0.01, -0.02)])[0].passed, "a bound at the margin does not pass"
