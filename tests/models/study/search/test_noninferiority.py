"""A mask is called harmless only where the held-out queries show it."""

import numpy as np
import pytest

from models.quality.bootstrap import estimate, resample, standard_errors
from models.quality.evaluation import Evaluation
from models.quality.labelled import LabelledPair
from models.study.base import Judged
from models.study.search.noninferiority import Loss, compare, fixed_sequence
from models.study.statistics import Resamples

QUERIES, TITLES, GRADES = 120, 10, 5


@pytest.fixture(scope="module")
def data() -> Judged:
    rng = np.random.default_rng(0)
    pairs = [
        LabelledPair(f"query {q}", f"title {t}", int(rng.integers(0, GRADES)))
        for q in range(QUERIES)
        for t in range(TITLES)
    ]
    return Judged.of(pairs, "made up")


def graded(data: Judged, spoilt: float, seed: int = 1) -> Evaluation:
    """Predictions that know the grade but for a share of the pairs."""
    rng = np.random.default_rng(seed)
    guess = rng.integers(0, GRADES, len(data))
    grade = np.where(rng.random(len(data)) < spoilt, guess, data.grade)
    probabilities = np.full((len(data), GRADES), 0.05)
    probabilities[np.arange(len(data)), grade] = 0.8
    return Evaluation([query for query, _ in data.pairs], data.grade.tolist(), probabilities)


def losses(data: Judged, masked: Evaluation, margin: float = 0.02) -> dict[str, Loss]:
    resamples = Resamples(data, 500, 0)
    whole = resamples.draws(graded(data, 0.2))
    return compare(resamples, whole, masked, margin)


def test_same_predictions_lose_nothing(data: Judged) -> None:
    by_metric = losses(data, graded(data, 0.2))

    assert all(loss.delta == loss.bound == loss.standard_error == 0 for loss in by_metric.values())
    assert [v.passed for v in fixed_sequence([by_metric], 0.02)] == [True]


def test_noise_that_may_hide_a_loss_does_not_pass(data: Judged) -> None:
    by_metric = losses(data, graded(data, 0.2, seed=2))

    assert by_metric["qwk"].bound < by_metric["qwk"].delta
    assert [v.passed for v in fixed_sequence([by_metric], 0.02)] == [False]
    assert by_metric["qwk"].power < 0.5
    assert by_metric["qwk"].queries_needed > QUERIES


def test_a_wide_margin_needs_few_queries(data: Judged) -> None:
    by_metric = losses(data, graded(data, 0.2, seed=2), margin=0.5)

    assert [v.passed for v in fixed_sequence([by_metric], 0.5)] == [True]
    assert by_metric["qwk"].power > 0.99
    assert by_metric["qwk"].queries_needed < QUERIES


def test_nothing_is_tested_after_the_first_failure() -> None:
    good, bad = (
        {"qwk": Loss(0.0, bound, 0.01, 0.5, 100), "ndcg10": Loss(0.0, 0.0, 0.01, 0.5, 100)}
        for bound in (-0.01, -0.03)
    )

    verdicts = fixed_sequence([good, bad, good], 0.02)

    assert [(v.tested, v.passed) for v in verdicts] == [(True, True), (True, False), (False, False)]
    one_at_the_margin = {"qwk": good["qwk"], "ndcg10": Loss(0.0, -0.02, 0.01, 0.5, 100)}
    assert not fixed_sequence([one_at_the_margin], 0.02)[0].passed


@pytest.mark.parametrize(("queries", "loss"), [(100, 0.1), (150, 0.2)])
def test_rare_large_losses_at_the_margin_pass_in_2_5_percent(queries: int, loss: float) -> None:
    """The truth is known from outside: a mask costs some queries `loss`, the margin on average. A test of |t|
    passes 4.5 to 5.3 % of such masks."""
    rng = np.random.default_rng(1)
    counts = resample(queries, 499, 0)
    passed = 0
    for _ in range(1000):
        change = -loss * (rng.random(queries) < 0.02 / loss) + rng.normal(0, 0.005, queries)
        means = counts @ change / queries
        errors = standard_errors(change - change.mean(), counts)
        found = estimate(means, errors)
        passed += found.bounds(0.025).low > -0.02
    assert passed <= 35  # 25 expected, standard deviation 5
