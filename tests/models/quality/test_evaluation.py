"""Metrics against scikit-learn and scipy, and intervals that cover what they should."""

import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import binomtest, spearmanr
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, ndcg_score

from headroom.models.arrays import Floats
from headroom.models.quality.bootstrap import MIN_QUERIES, Interval, draws, resample
from headroom.models.quality.calibration import reliability
from headroom.models.quality.comparison import worst_queries
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.rankings import BY_QUERY


def random_evaluation(seed: int, queries: int = 12, grades: int = 5, each: int = 9) -> GradedEvaluation:
    rng = np.random.default_rng(seed)
    names = [f"q{i}" for i in rng.integers(0, queries, queries * each)]
    truth = rng.integers(0, grades, len(names))
    logits = rng.normal(size=(len(names), grades)) + 1.5 * np.eye(grades)[truth]
    return evaluation_of(judged(names, truth.tolist()), softmax(logits, axis=1))


def evaluation_of(pairs: list[LabelledPair], probabilities: NDArray[np.float64]) -> GradedEvaluation:
    """Rank by the expected grade, which no rounding has touched."""
    return GradedEvaluation(pairs, probabilities, probabilities @ np.arange(probabilities.shape[1]))


def intervals(evaluation: Evaluation, resamples: int) -> dict[str, Interval]:
    counts = resample(evaluation.clusters, resamples, 0)
    return intervals_of(evaluation.draws(counts), counts)


def changes(before: GradedEvaluation, after: GradedEvaluation, resamples: int) -> dict[str, Interval]:
    counts = resample(before.clusters, resamples, 0)
    return changes_of(before.draws(counts), after.draws(counts), counts)


def judged(queries: Iterable[str], grades: Iterable[int]) -> list[LabelledPair]:
    return [LabelledPair(query, "title", grade) for query, grade in zip(queries, grades, strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_scikit_learn_and_scipy(seed: int) -> None:
    one = random_evaluation(seed)
    found, truth, predicted = one.metrics(), one.truth, one.predicted
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert found["qwk"] == pytest.approx(cohen_kappa_score(truth, predicted, weights="quadratic"))
    assert found["spearman"] == pytest.approx(spearmanr(truth, one.expected).statistic)
    of_query = [np.flatnonzero(one.query_of == query) for query in range(one.queries)]
    ranked = [rows for rows in of_query if len(set(truth[rows])) > 1]
    within = [spearmanr(truth[rows], one.expected[rows]).statistic for rows in ranked]
    gains = [ndcg_score(2.0 ** truth[None, rows] - 1, one.expected[None, rows], k=10) for rows in ranked]
    assert found["query_spearman"] == pytest.approx(np.mean(within))
    assert found["ndcg10"] == pytest.approx(np.mean(gains))
    sure = one.probabilities.max(1)
    right = one.probabilities.argmax(1) == truth
    bins = np.minimum((sure * 15).astype(int), 14)
    gaps = [abs((sure[bins == number] - right[bins == number]).sum()) for number in range(15)]
    assert found["ece"] == pytest.approx(sum(gaps) / len(truth))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_resample_is_the_metric_of_the_resampled_pairs(seed: int) -> None:
    """Each copy of a query counts as a query of its own."""
    one = random_evaluation(seed)
    counts = resample(one.queries, 1, seed)[1:]
    drawn = [(query, copy) for query in range(one.queries) for copy in range(int(counts[0, query]))]
    rows = [
        (f"{query}/{copy}", row) for query, copy in drawn for row in np.flatnonzero(one.query_of == query)
    ]
    names, chosen = zip(*rows, strict=True)
    pairs = judged(names, one.truth[list(chosen)].tolist())
    expected = evaluation_of(pairs, one.probabilities[list(chosen)]).metrics()

    found = one.resampled(counts)

    for name, value in expected.items():
        assert found[name][0] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("truth", [[2] * 40, [0, 1] + [2] * 38, [0, 1, 2, 3] * 10])
@pytest.mark.parametrize("same", [False, True])
def test_where_a_metric_is_undefined_there_is_no_warning_and_no_interval(
    truth: list[int], same: bool
) -> None:
    probabilities = np.random.default_rng(0).random((40, 5))
    probabilities[:] = probabilities[0] if same else probabilities
    probabilities /= probabilities.sum(1, keepdims=True)
    evaluation = evaluation_of(judged([f"q{i // 2}" for i in range(40)], truth), probabilities)
    found = intervals(evaluation, 50)
    change = changes(evaluation, evaluation, 50)
    assert np.isnan(found["ndcg10"].value) == (len(set(truth)) == 1)
    assert np.isnan(found["query_spearman"].value) == (len(set(truth)) == 1)
    assert np.isnan(change["spearman"].value) == (same or len(set(truth)) == 1)
    if same and len(set(truth)) > 1:
        assert found["query_spearman"].value == 0


@pytest.mark.parametrize(("queries", "ranked"), [(1, 1), (9, 9), (60, 1), (60, 9)])
def test_few_queries_give_no_interval(queries: int, ranked: int) -> None:
    """One query alone would have an error of 0: the surest result of all."""
    rng = np.random.default_rng(0)
    names = [f"q{query}" for query in range(queries) for _ in range(4)]
    truth = [grade if query < ranked else 2 for query in range(queries) for grade in (0, 1, 2, 4)]
    one, other = (
        evaluation_of(judged(names, truth), probabilities / probabilities.sum(1, keepdims=True))
        for probabilities in rng.random((2, len(names), 5))
    )
    for found in (intervals(one, 100), changes(one, other, 100)):
        for name, metric in found.items():
            hangs = ranked == 1 and name in ("macro_f1", "spearman")  # on one query: without it, undefined
            few = ranked if hangs or name in BY_QUERY else queries
            assert np.isfinite(metric.value)
            if not (hangs and np.isfinite(metric.low)):
                assert np.isnan([metric.low, metric.high]).tolist() == [few < MIN_QUERIES] * 2, name


def test_a_grade_at_half_of_its_share_is_seen() -> None:
    """As on the shipped model once: `exact` is half of the pairs and gets a quarter of the probability, and
    the likeliest grade, mostly another one, is as sure as it is right."""
    rng = np.random.default_rng(1)
    n = 3000
    truth = rng.choice(5, n, p=[0.1, 0.1, 0.2, 0.12, 0.48])
    probabilities = np.tile([0.19, 0.19, 0.2, 0.19, 0.23], (n, 1))
    probabilities[:, 2], probabilities[:, 4] = 0.23, 0.2
    evaluation = evaluation_of(judged([f"q{i}" for i in range(n)], truth.tolist()), probabilities)
    found = evaluation.calibration

    assert evaluation.metrics()["ece"] < 0.05
    assert found["shares"][4] - found["mean_probabilities"][4] > 0.25


def one_pair_a_query(right: NDArray[np.bool_]) -> GradedEvaluation:
    probabilities = np.where(right[:, None], [0.01, 0.99], [0.99, 0.01])
    return evaluation_of(judged([f"q{i}" for i in range(len(right))], [1] * len(right)), probabilities)


def accuracy_of(evaluation: GradedEvaluation) -> Interval:
    counts = resample(evaluation.clusters, 400, 0)
    return intervals_of(evaluation.draws(counts, evaluation.of_sums), counts)["accuracy"]


@pytest.mark.parametrize("queries", [10, 34, 200])
def test_a_perfect_model_has_the_exact_interval_of_as_many_trials_without_a_failure(queries: int) -> None:
    """It had a width of 0, as if no query in the world could be answered wrongly."""
    found = accuracy_of(one_pair_a_query(np.ones(queries, np.bool_)))
    exact = binomtest(queries, queries).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("losses", [[0.0], [0.95, 0.95, 0.95, 0.95, 0.0], [0.99, 0.9, 0.63, 0.5]])
@pytest.mark.parametrize("share", [0.005, 0.03])
def test_a_mean_that_few_queries_pull_has_an_interval_that_covers_the_truth(
    share: float, losses: list[float]
) -> None:
    """Where most losses are small and few are total, the bootstrap alone covered 55 % of the truths."""
    truth = 1 - share * (1 - np.mean(losses))
    counts = resample(200, 200, 0)
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = np.where(rng.random(200) < share, rng.choice(losses, 200), 1.0)
        drawn = draws(lambda rows: {"mrr10": rows @ values / rows.sum(1)}, counts, lambda _: 200)  # noqa: B023
        found = intervals_of(drawn, counts)["mrr10"]
        assert found.low <= found.value <= found.high
        covered += found.low <= truth <= found.high
    assert covered >= 56


def test_one_query_of_200_in_the_wrong_order_is_seen_in_every_rank_metric() -> None:
    truth = np.tile([0, 1, 2], 200)
    ranking = truth.astype(np.float64)
    pairs = judged([f"q{i // 3}" for i in range(600)], truth.tolist())
    perfect = intervals(Evaluation(pairs, ranking, 2), 300)
    ranking[:3] = (2, 1, 0)
    flawed = intervals(Evaluation(pairs, ranking, 2), 300)
    for name in (*BY_QUERY, "spearman"):
        assert perfect[name].value == pytest.approx(1)
        assert flawed[name].low <= perfect[name].low < 0.99, name
        assert flawed[name].low <= flawed[name].value <= flawed[name].high <= 1, name
    assert flawed["mrr10"].value == pytest.approx(1 - 2 / 3 / 200)
    assert flawed["pair_accuracy"].low == pytest.approx(binomtest(199, 200).proportion_ci().low, abs=0.003)


def log_loss_of(losses: Floats) -> Interval:
    """Return the interval of the log loss of one relevant pair per query, with these losses."""
    probabilities = np.stack([1 - np.exp(-losses), np.exp(-losses)], axis=1)
    pairs = judged([f"q{number}" for number in range(len(losses))], [1] * len(losses))
    evaluation = GradedEvaluation(pairs, probabilities, losses)
    interval: Interval = reliability(evaluation, evaluation, is_graded=False, resamples=200)["log_loss"][
        "after"
    ]
    return interval


def test_a_log_loss_of_0_may_be_the_highest_on_queries_that_were_not_seen() -> None:
    """It said 0.000 (0.000 to 0.000). With no failure in 60, up to 6.0 % may fail (Clopper and Pearson), and
    a probability of 10⁻⁹, the smallest that counts, costs 20.7."""
    found = log_loss_of(np.zeros(60))
    assert found.high == pytest.approx(binomtest(0, 60).proportion_ci().high * 20.723, rel=1e-3)


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_a_log_loss_that_few_queries_make_has_an_interval_that_covers_the_truth(share: float) -> None:
    """numpy warned, and the upper end was that of the bootstrap alone."""
    truth = (1 - share) * 0.01 + share * 10
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = log_loss_of(np.where(rng.random(60) < share, rng.uniform(0, 20, 60), 0.01))
        covered += found.low <= truth <= found.high
    assert covered >= 56


def test_spearman_of_many_pairs_needs_bounded_memory_and_is_that_of_scipy() -> None:
    """It needed 10 kB for each pair: 10 GB for a million."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 40_000)
    one = Evaluation(
        judged((f"q{row // 10}" for row in range(40_000)), truth.tolist()), rng.normal(size=40_000)
    )
    counts = resample(one.clusters, 255, 0)
    one.metrics()  # what it keeps of each query takes long under the tracing
    tracemalloc.start()
    try:
        found = one.resampled(counts)["spearman"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 300e6
    for resampled in (0, 137, 255):  # the queries' groups are drawn whole: query 1000 with query 0
        copies = np.repeat(np.arange(40_000), counts[resampled][one.query_of % 1000].astype(int))
        assert found[resampled] == pytest.approx(spearmanr(truth[copies], one.ranking[copies])[0], abs=1e-9)


def test_the_worst_queries_are_found_wherever_their_pairs_stand() -> None:
    rng = np.random.default_rng(1)
    queries = [*"abc" * 40]
    truth = rng.integers(0, 2, 120)
    ranking = np.array(
        [{"a": 1, "b": -1, "c": 1}[query] * grade for query, grade in zip(queries, truth, strict=True)]
    )
    pairs = [
        LabelledPair(query, f"title {row}", grade)
        for row, (query, grade) in enumerate(zip(queries, truth.tolist(), strict=True))
    ]

    worst, *others = worst_queries(Evaluation(pairs, ranking), pairs)

    assert (worst["query"], worst["pairs"], [one["ndcg10"] for one in others]) == ("b", 40, [1.0, 1.0])
    assert queries[int(worst["title"].removeprefix("title "))] == "b"
