"""Metrics against their textbook definitions, and intervals that cover what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.classifier import Scores
from models.quality.bootstrap import MIN_QUERIES
from models.quality.evaluation import Evaluation, differences, intervals, resample


def random_evaluation(seed: int, queries: int = 12, grades: int = 5, each: int = 9) -> Evaluation:
    rng = np.random.default_rng(seed)
    names = [f"q{i}" for i in rng.integers(0, queries, queries * each)]
    truth = rng.integers(0, grades, len(names))
    logits = rng.normal(size=(len(names), grades)) + 1.5 * np.eye(grades)[truth]
    powers = np.exp(logits)
    return Evaluation(names, truth.tolist(), powers / powers.sum(1, keepdims=True))


def textbook(evaluation: Evaluation, places: np.ndarray) -> dict[str, float]:
    """The metrics of some pairs, a query's copies counting as queries of their own, by plain loops."""
    truth = [int(evaluation.truth[i]) for i in places]
    predicted = [int(evaluation.predicted[i]) for i in places]
    expected = [float(evaluation.expected[i]) for i in places]
    n, grades = len(places), evaluation.grades
    f1 = []
    for grade in sorted(set(truth)):
        right = sum(t == p == grade for t, p in zip(truth, predicted, strict=True))
        f1.append(2 * right / (truth.count(grade) + predicted.count(grade)))
    observed = sum((t - p) ** 2 for t, p in zip(truth, predicted, strict=True)) / n
    chance = sum((t - p) ** 2 for t in truth for p in predicted) / n**2

    def ranks(values: list[float]) -> list[float]:
        return [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]

    confidence = evaluation.probabilities[places].max(1)
    bins = [min(int(c * 15), 14) for c in confidence]
    ece = sum(
        abs(sum(confidence[i] - (truth[i] == predicted[i]) for i in range(n) if bins[i] == b))
        for b in range(15)
    )
    assert grades > 1
    classwise = 0.0
    for grade in range(grades):
        chance_of = evaluation.probabilities[places, grade]
        for b in range(15):
            of_bin = [i for i in range(n) if min(int(chance_of[i] * 15), 14) == b]
            classwise += abs(sum(chance_of[i] - (truth[i] == grade) for i in of_bin)) / n / grades
    within = []
    for query in sorted({int(evaluation.query_of[i]) for i in places}):
        of_query = [place for place in range(n) if evaluation.query_of[places[place]] == query]
        pair = [ranks([float(values[place]) for place in of_query]) for values in (truth, expected)]
        if len(set(pair[0])) > 1:
            within += [np.corrcoef(*pair)[0, 1]] * copies(places, query, evaluation)
    return {
        "query_spearman": float(np.mean(within)),
        "accuracy": sum(t == p for t, p in zip(truth, predicted, strict=True)) / n,
        "macro_f1": sum(f1) / len(f1),
        "qwk": 1 - observed / chance,
        "spearman": float(np.corrcoef(ranks([float(t) for t in truth]), ranks(expected))[0, 1]),
        "ece": float(ece) / n,
        "classwise_ece": float(classwise),
    }


def copies(places: np.ndarray, query: int, evaluation: Evaluation) -> int:
    """How often the resample holds a query."""
    return int(np.sum(places == np.flatnonzero(evaluation.query_of == query)[0]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_metrics_are_their_textbook_definitions(seed: int) -> None:
    evaluation = random_evaluation(seed)
    metrics = evaluation.metrics()
    for name, value in textbook(evaluation, np.arange(len(evaluation.truth))).items():
        assert metrics[name] == pytest.approx(value, abs=1e-9), name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_resample_is_the_metric_of_the_resampled_pairs(seed: int) -> None:
    evaluation = random_evaluation(seed)
    counts = resample(evaluation.queries, 1, seed)
    places = np.repeat(np.arange(len(evaluation.truth)), counts[0, evaluation.query_of].astype(int))

    drawn = evaluation.resampled(counts)

    for name, value in textbook(evaluation, places).items():
        assert drawn[name][0] == pytest.approx(value, abs=1e-9), name


def test_ndcg_by_hand() -> None:
    probabilities = np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6], [0.5, 0.5]])
    evaluation = Evaluation(["a", "a", "a", "alone"], [0, 1, 1, 1], probabilities)
    # Order of "a": grades 0, 1, 1; the ideal is 1, 1, 0. "alone" has nothing to rank.
    expected = (1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3))
    assert evaluation.metrics()["ndcg10"] == pytest.approx(expected)


def test_equal_scores_rank_as_a_random_order_does() -> None:
    evaluation = Evaluation(["q"] * 12, [0, 1, 2, 3, 4, 0] * 2, np.full((12, 5), 0.2))
    assert evaluation.metrics()["ndcg10"] == pytest.approx(evaluation.random_order_ndcg10())


def test_random_order_is_the_mean_of_random_orders() -> None:
    rng = np.random.default_rng(0)
    truth = [0, 1, 2, 2, 4, 0, 0, 1, 3, 0, 0, 2]
    draws = []
    for _ in range(4000):
        scores = rng.random(12)
        probabilities = np.stack([1 - scores, *[np.zeros(12)] * 3, scores], axis=1)
        draws.append(Evaluation(["q"] * 12, truth, probabilities).metrics()["ndcg10"])
    assert np.mean(draws) == pytest.approx(
        Evaluation(["q"] * 12, truth, np.full((12, 5), 0.2)).random_order_ndcg10(), abs=0.01
    )


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(60):
        found = intervals(random_evaluation(seed, queries=60, each=4), resamples=300, seed=seed)["accuracy"]
        assert found.low <= found.value <= found.high
        covered += found.low <= TRUE_ACCURACY <= found.high
    assert covered >= 50  # 57 expected of 60; fewer than 50 happens once in a thousand


TRUE_ACCURACY = random_evaluation(1, queries=20_000, each=4).metrics()["accuracy"]


@pytest.mark.parametrize("truth", [[2] * 40, [0, 1] + [2] * 38, [0, 1, 2, 3] * 10])
@pytest.mark.parametrize("same", [False, True])
def test_where_a_metric_is_undefined_there_is_no_warning_and_no_interval(
    truth: list[int], same: bool
) -> None:
    probabilities = np.random.default_rng(0).random((40, 5))
    probabilities[:] = probabilities[0] if same else probabilities
    probabilities /= probabilities.sum(1, keepdims=True)
    evaluation = Evaluation([f"q{i // 2}" for i in range(40)], truth, probabilities)
    found = intervals(evaluation, resamples=50)
    change = differences(evaluation, evaluation, resamples=50)
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
        Evaluation(names, truth, probabilities / probabilities.sum(1, keepdims=True))
        for probabilities in rng.random((2, len(names), 5))
    )
    for found in (intervals(one, resamples=100), differences(one, other, resamples=100)):
        for name, metric in found.items():
            hangs = ranked == 1 and name in ("macro_f1", "spearman")  # on one query: without it, undefined
            few = ranked if hangs or name in ("ndcg10", "query_spearman") else queries
            assert np.isfinite(metric.value)
            if not (hangs and np.isfinite(metric.low)):
                assert np.isnan([metric.low, metric.high]).tolist() == [few < MIN_QUERIES] * 2, name


def test_the_interval_of_a_difference_is_paired() -> None:
    first = random_evaluation(3, queries=40)
    # The same predictions, a little less sure of themselves: almost nothing changes, whatever the queries.
    softened = first.probabilities**0.99
    second = Evaluation(
        first.query_of.astype(str).tolist(), first.truth.tolist(), softened / softened.sum(1, keepdims=True)
    )

    change = differences(first, second, resamples=300)

    assert change["accuracy"].value == change["accuracy"].low == change["accuracy"].high == 0
    assert abs(change["spearman"].high - change["spearman"].low) < 0.01
    with pytest.raises(ValueError, match="same pairs"):
        differences(first, random_evaluation(4, queries=40))


def test_titles_that_a_model_is_sure_of_are_ranked_by_how_sure_it_is() -> None:
    scores = Scores.from_logits(np.array([[0, 0, top] for top in (20, 40, 22)], np.float32))
    assert (scores.score == 1).all()
    evaluation = Evaluation(["q"] * 3, [0, 2, 1], scores.probabilities, ranking=scores.raw_score)
    assert evaluation.metrics()["ndcg10"] == 1
