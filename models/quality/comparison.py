"""Compares models, masks, number formats and lexical baselines on the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.arrays import Floats, Ints
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.quality.bootstrap import MetricDraws, estimate_of, resample
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.graded import GradedEvaluation, evaluation_of
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.lexical import bm25, idf_overlap
from headroom.models.quality.noninferiority import MARGIN, RESAMPLES, SEED, non_inferiority
from headroom.models.quality.order import METRICS as RANKING
from headroom.models.quality.order import GivenOrder, against_order
from headroom.models.quality.rankings import Rankings

if TYPE_CHECKING:
    from headroom.models.scores import Scores

WORST = 20
"""How many queries of each side a report shows."""


@dataclass(frozen=True)
class Side:
    """A model under a mask, as reports name it, and its predictions.

    variant: what the mask is laid on, `full` for the intact model. head_mask: the spec of all that is off.
    """

    name: str
    model: str
    variant: str
    head_mask: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Truth:
    """Judged pairs as several models are judged on them.

    relevant: the lowest grade that counts as relevant. has_grades: whether models with grades are judged by
    them, too; if not, by their order alone.
    """

    pairs: Sequence[LabelledPair]
    relevant: int
    has_grades: bool = True

    def evaluation(self, scores: Scores, name: str) -> Evaluation:
        """Return the evaluation of a model's scores of the pairs. Raises ModelError if some are not finite.

        name: of the model, for the error.
        """
        wrong = int(np.count_nonzero(~np.isfinite(scores.raw_score)))
        if wrong:
            raise ModelError(
                f"{name}: the scores of {wrong} of {len(self.pairs)} pairs are not finite numbers"
            )
        if self.has_grades:
            return evaluation_of(self.pairs, scores, self.relevant)
        return Evaluation(self.pairs, scores.raw_score, self.relevant)


def compare_sides(
    sides: Sequence[Side],
    pairs: Sequence[LabelledPair],
    *,
    resamples: int = RESAMPLES,
    margin: float = MARGIN,
    given: GivenOrder | None = None,
) -> Json:
    """Compare the sides with each other, and the first one with the baselines. All are of these pairs.

    Returns the figures of report.json; metrics and paired changes are an Interval each, by name. Two sides
    differ in the metrics that both have. margin: the fall that `queries_needed` is about. given: the order of
    the pairs that the first side is compared with; default: that of the rows.
    """
    first = sides[0].evaluation
    counts = resample(first.clusters, resamples, SEED)
    draws = {side.name: side.evaluation.draws(counts) for side in sides}
    order = against_order(pairs, first, draws[sides[0].name], counts, given or GivenOrder())
    differences = [_difference(one, other, draws, counts, margin) for one, other in combinations(sides, 2)]
    return {
        "pairs": len(pairs),
        "queries": first.queries,
        "ranked_queries": first.ranked_queries,
        "relevant_from_grade": first.relevant,
        "margin": margin,
        "ndcg10_random_order": first.random_order_ndcg10(),
        "sides": [
            {
                "name": side.name,
                "model": side.model,
                "variant": side.variant,
                "head_mask": side.head_mask,
                "metrics": intervals_of(draws[side.name], counts),
                "over_random_order": estimate_of(
                    side.evaluation.over_random_order(counts), counts
                ).interval(),
                **_of_grades(side.evaluation),
                "worst_queries": worst_queries(side.evaluation, pairs),
            }
            for side in sides
        ],
        "differences": differences,
        "baselines": {
            **_baselines(pairs, first.relevant, draws[sides[0].name], counts),
            "order": order,
        },
    }


def _difference(
    one: Side, other: Side, draws: Mapping[str, MetricDraws], counts: Floats, margin: float
) -> Json:
    """Return the paired changes from one side to another; and of each metric that is tested whether a fall of
    the margin is excluded, and how many queries would exclude it."""
    before = draws[one.name]
    after = draws[other.name]
    drawn = {name: after[name] - before[name] for name in before if name in after}
    test = non_inferiority(one.evaluation, before, after, counts, margin)
    return {
        "first": one.name,
        "second": other.name,
        "change": intervals_of(drawn, counts, change=True),
        "shown": test.passed,
        "verdict": test.sentence(other.name),
        "better_than_chance": test.has_skill,
        "queries_that_count": test.queries_that_count,
        "margin_excluded": {name: loss.excluded for name, loss in test.losses.items()},
        "queries_needed": {name: loss.queries_needed for name, loss in test.losses.items()},
    }


def _of_grades(evaluation: Evaluation) -> Json:
    """Return the figures that a side has if its model has grades."""
    if not isinstance(evaluation, GradedEvaluation):
        return {}
    return {"confusion": evaluation.confusion.tolist(), "calibration": evaluation.calibration}


def _baselines(pairs: Sequence[LabelledPair], relevant: int, model: MetricDraws, counts: Floats) -> Json:
    """Return the metrics of rankings without a model, and the model's paired difference to each."""
    baselines = {}
    titles = sorted({pair.title for pair in pairs})  # the file's own words are counted
    for name, scorer in (("word overlap", idf_overlap(titles)), ("BM25", bm25(titles))):
        ranking = np.array([scorer(pair.query, pair.title) for pair in pairs])
        every = Evaluation(pairs, ranking, relevant).draws(counts)
        drawn = {metric: every[metric] for metric in RANKING}
        change = changes_of(drawn, model, counts)
        baselines[name] = {"metrics": intervals_of(drawn, counts), "model_minus": change}
    return baselines


def worst_queries(evaluation: Evaluation, pairs: Sequence[LabelledPair]) -> list[Json]:
    """Return the queries of lowest NDCG@10, each with its worst title.

    With grades it is the title whose grade is missed by most, else the one that is furthest from where its
    grade belongs. Queries whose titles all have one grade come last, those with the largest miss first.
    """
    queries = []
    lists = zip(evaluation.of_list("ndcg10"), evaluation.rows_by_list, strict=True)
    for number, (ndcg10, rows) in enumerate(lists):
        miss, row, figures = _worst_title(evaluation, rows)
        entry = {
            "query": pairs[row].query,
            "pairs": len(rows),
            "ndcg10": float(ndcg10),
            "title": pairs[row].title,
            "grade": pairs[row].grade,
            **figures,
        }
        queries.append((np.nan_to_num(ndcg10, nan=2.0), -miss, number, entry))
    return [entry for *_, entry in sorted(queries)[:WORST]]


def _worst_title(evaluation: Evaluation, rows: Ints) -> tuple[float, int, Json]:
    """Return how far the worst title of a query, which has these rows, is off; its row; and figures of it."""
    if isinstance(evaluation, GradedEvaluation):
        misses = np.abs(evaluation.expected[rows] - evaluation.truth[rows])
        index = int(misses.argmax())
        row = int(rows[index])
        return float(misses[index]), row, {"expected_grade": float(evaluation.expected[row])}
    from scipy.stats import rankdata  # every command imports this module, and scipy takes most of a second

    ranks = rankdata(-evaluation.ranking[rows])
    first = rankdata(-evaluation.truth[rows], "min")  # the ranks at which its grade belongs
    last = rankdata(-evaluation.truth[rows], "max")
    belongs = np.clip(ranks, first, last)
    misses = np.abs(ranks - belongs)
    index = int(misses.argmax())
    figures = {"rank": float(ranks[index]), "rank_of_grade": float(belongs[index])}
    return float(misses[index]), int(rows[index]), figures


def agreement(
    first: Scores,
    second: Scores,
    pairs: Sequence[tuple[str, str]],
    labelled: Sequence[LabelledPair] | None,
    margin: float,
) -> Json:
    """Compare the scores of a model with those of a faster form of it, on the same pairs.

    labelled: the pairs, if their grades are known. Returns the share of two titles of a query that both put
    in the same order; with grades, the share of pairs with the same grade in both; the distance between the
    two probabilities of a grade; and, empty without labels, the metrics before and after, each one's paired
    change, an Interval, and under `test` what `non_inferiority` says of the margin.
    """
    distance = np.abs(first.probabilities - second.probabilities)
    figures: Json = {"before": {}, "after": {}, "change": {}, "margin_excluded": {}, "test": None}
    if labelled is not None:
        before = evaluation_of(labelled, first)
        after = evaluation_of(labelled, second)
        counts = resample(before.clusters, RESAMPLES, SEED)
        draws = before.draws(counts)
        drawn_after = after.draws(counts)
        test = non_inferiority(before, draws, drawn_after, counts, margin)
        figures = {
            "before": before.metrics(),
            "after": after.metrics(),
            "change": changes_of(draws, drawn_after, counts),
            "margin_excluded": {name: loss.excluded for name, loss in test.losses.items()},
            "test": test.as_json() | {"verdict": test.sentence("int8")},
        }
    if first.probabilities.shape[1] > 1:
        figures["same_grade"] = float((first.grade == second.grade).mean())
    return {
        "pairs": len(distance),
        "same_order": same_order([query for query, _ in pairs], first.raw_score, second.raw_score),
        "largest_probability_difference": float(distance.max()),
        "mean_probability_difference": float(distance.mean()),
        **figures,
    }


def same_order(queries: Sequence[str], first: Floats, second: Floats) -> float:
    """Return the share of two titles of one query that two rankings, (n,) each, put in the same order.

    Titles that are equal in the first one do not count; equal in the second one, they count half. nan if no
    query has two titles.
    """
    numbers = {query: number for number, query in enumerate(dict.fromkeys(queries))}
    list_of = np.array([numbers[query] for query in queries], np.int64)
    ranks = np.unique(first, return_inverse=True)[1]
    rankings = Rankings(list_of, ranks, second)
    pairs = rankings.ordered_pairs()
    right = np.nansum(rankings.metric("pair_accuracy") * pairs)
    return float(right / pairs.sum()) if pairs.any() else float("nan")
