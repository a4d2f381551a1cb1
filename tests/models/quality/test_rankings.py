"""Metrics of rankings against trec_eval, whose order of equal titles is averaged over all orders."""

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np
import pytest
import pytrec_eval
from scipy.stats import spearmanr

from headroom.models.arrays import Floats, Ints
from headroom.models.quality.comparison import same_order
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.rankings import BY_QUERY, Rankings

MEASURES = {"ndcg10": "ndcg_cut_10", "mrr10": "recip_rank", "map": "map", "recall10": "recall_10"}


def trec_eval(truth: Ints, ranked: Iterable[int], relevant: int) -> dict[str, float]:
    """trec_eval's metrics of titles in this order; its gain of a grade is the grade itself."""
    judged = {f"d{row}": int(grade) for row, grade in enumerate(truth)}
    run = {"q": {f"d{row}": 1000.0 - rank for rank, row in enumerate(ranked)}}
    gains = {name: 2**grade - 1 for name, grade in judged.items()}
    asked = {"recip_rank", "map", "recall.10"}
    found = pytrec_eval.RelevanceEvaluator({"q": judged}, asked, relevance_level=relevant).evaluate(run)["q"]
    found |= pytrec_eval.RelevanceEvaluator({"q": gains}, {"ndcg_cut.10"}).evaluate(run)["q"]
    values = {name: float(found[measure]) for name, measure in MEASURES.items()}
    values["mrr10"] *= values["mrr10"] >= 0.1  # it looks at all ranks, MRR@10 at ten
    return values


def ours(truth: Ints, scores: Floats, relevant: int) -> dict[str, float]:
    evaluation = Evaluation([LabelledPair("q", "title", int(grade)) for grade in truth], scores, relevant)
    return {name: float(evaluation.of_list(name)[0]) for name in BY_QUERY}


@pytest.mark.parametrize("seed", range(8))
def test_without_ties_the_metrics_are_those_of_trec_eval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = np.append(rng.integers(0, 4, 24), [0, 3])
    scores = rng.normal(size=26)
    for relevant in (1, 3):
        found = ours(truth, scores, relevant)
        for name, value in trec_eval(truth, np.argsort(-scores), relevant).items():
            assert found[name] == pytest.approx(value, abs=1e-6), name
    assert found["query_spearman"] == pytest.approx(spearmanr(truth, scores).statistic)


@pytest.mark.parametrize("seed", range(4))
def test_titles_of_equal_score_share_what_all_their_orders_give(seed: int) -> None:
    """The order of a file decided between them, so sorted judgments made any tied model look good."""
    rng = np.random.default_rng(seed)
    below = rng.normal(size=8) + 10 * (seed % 2)  # with ten before them, the tied ones straddle the cutoff
    truth = np.concatenate([rng.integers(0, 3, 8), [0, 2, 0, 1, 2]])
    scores = np.concatenate([below, [5.0] * 5])
    tied = range(8, 13)
    fixed = [int(row) for row in np.argsort(-scores[:8])]
    orders = []
    for order in permutations(tied):
        before = [row for row in fixed if scores[row] > 5]
        orders.append(trec_eval(truth, [*before, *order, *(row for row in fixed if scores[row] < 5)], 1))
    found = ours(truth, scores, 1)
    for name in MEASURES:
        assert found[name] == pytest.approx(np.mean([one[name] for one in orders]), abs=1e-6), name


@pytest.mark.parametrize("seed", range(6))
def test_many_lists_have_the_metrics_that_each_has_by_itself(seed: int) -> None:
    """Lists of 1 to 20 titles, some of one grade or without a relevant one; their rows are mixed."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 21, 30)
    list_of = rng.permutation(np.repeat(np.arange(30), sizes))
    truth = rng.integers(0, rng.integers(1, 5, 30)[list_of])
    scores = rng.normal(size=len(truth)).round(1)
    rankings = Rankings(list_of, truth, scores, relevant=2)
    in_order = rankings.ordered_pairs()
    for number in range(30):
        rows = np.flatnonzero(list_of == number)
        alone = ours(truth[rows], scores[rows], 2)
        for name in BY_QUERY:
            assert rankings.metric(name)[number] == pytest.approx(alone[name], nan_ok=True), (number, name)
        if len(np.unique(truth[rows])) > 1:
            rank = spearmanr(truth[rows], scores[rows]).statistic  # nan if all scores are equal
            assert alone["query_spearman"] == pytest.approx(np.nan_to_num(rank))
            concordant = pairs_of(truth[rows], scores[rows], lambda gap: (np.sign(gap) + 1) / 2)
            assert alone["pair_accuracy"] == pytest.approx(concordant / in_order[number])
        assert in_order[number] == pairs_of(truth[rows], scores[rows], np.ones_like)


def pairs_of(truth: Ints, scores: Floats, worth: Callable[[Floats], Floats]) -> float:
    """Return the worth of all pairs of different grades, by how much higher the higher one scores."""
    higher, lower = np.nonzero(truth[:, None] > truth[None, :])
    return float(worth(scores[higher] - scores[lower]).sum())


def test_the_share_of_pairs_in_the_same_order_is_counted_within_queries() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 40)).round(1)
    queries = ["a"] * 25 + ["b"] * 14 + ["alone"]
    right = pairs = 0.0
    for rows in (slice(25), slice(25, 39)):
        right += pairs_of(first[rows], second[rows], lambda gap: (np.sign(gap) + 1) / 2)
        pairs += pairs_of(first[rows], second[rows], np.ones_like)
    assert same_order(queries, first, second) == pytest.approx(right / pairs)
    assert np.isnan(same_order(["a", "b"], first[:2], second[:2]))
