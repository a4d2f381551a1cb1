"""Compares models, masks, number formats and lexical baselines on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.files import Json
from headroom.models.quality.bootstrap import MetricDraws, resample
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.graded import evaluation_of
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.lexical import bm25, idf_overlap

if TYPE_CHECKING:
    from headroom.models.classifier import Scores

RANKING = ("ndcg10", "query_spearman", "spearman")
"""The metrics that need an order alone, no grades: those that a lexical baseline has too."""

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


def compare_sides(sides: Sequence[Side], pairs: Sequence[LabelledPair], *, resamples: int) -> Json:
    """Compare the sides with each other, and the first one with the baselines. All are of these pairs.

    Returns the figures of report.json; metrics and paired changes are an Interval each, by name.
    """
    first = sides[0].evaluation
    counts = resample(first.clusters, resamples, 0)
    draws = {side.name: side.evaluation.draws(counts) for side in sides}
    differences = [
        {"first": one, "second": other, "change": changes_of(draws[one], draws[other], counts)}
        for one, other in combinations(draws, 2)
    ]
    return {
        "pairs": len(pairs),
        "queries": first.queries,
        "ndcg10_random_order": first.random_order_ndcg10(),
        "sides": [
            {
                "name": side.name,
                "model": side.model,
                "variant": side.variant,
                "head_mask": side.head_mask,
                "metrics": intervals_of(draws[side.name], counts),
                "confusion": side.evaluation.confusion.tolist(),
                "calibration": side.evaluation.calibration,
                "worst_queries": worst_queries(side.evaluation, pairs),
            }
            for side in sides
        ],
        "differences": differences,
        "baselines": _baselines(pairs, first.relevant, draws[sides[0].name], counts),
    }


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
    """Return the queries of lowest NDCG@10, each with the title whose grade is missed by most.

    Queries whose titles all have one grade come last, those with the largest miss first.
    """
    misses = np.abs(evaluation.expected - evaluation.truth)
    queries = []
    for query, ndcg10 in enumerate(evaluation.of_query("ndcg10")):
        rows = np.flatnonzero(evaluation.query_of == query)
        row = int(rows[misses[rows].argmax()])
        entry = {
            "query": pairs[row].query,
            "pairs": len(rows),
            "ndcg10": float(ndcg10),
            "title": pairs[row].title,
            "grade": pairs[row].grade,
            "expected_grade": float(evaluation.expected[row]),
        }
        queries.append((np.nan_to_num(ndcg10, nan=2.0), -misses[row], query, entry))
    return [entry for *_, entry in sorted(queries)[:WORST]]


def agreement(first: Scores, second: Scores, labelled: Sequence[LabelledPair] | None) -> Json:
    """Compare the scores of a model with those of a faster form of it, on the same pairs.

    labelled: the pairs, if their grades are known. Returns the share of pairs with the same grade in both,
    the distance between the two probabilities of a grade, and, empty without labels, the metrics before and
    after and each one's paired change, an Interval.
    """
    distance = np.abs(first.probabilities - second.probabilities)
    figures: Json = {"before": {}, "after": {}, "change": {}}
    if labelled is not None:
        before = evaluation_of(labelled, first)
        after = evaluation_of(labelled, second)
        counts = resample(before.clusters, 2000, 0)
        change = changes_of(before.draws(counts), after.draws(counts), counts)
        figures = {"before": before.metrics(), "after": after.metrics(), "change": change}
    return {
        "pairs": len(distance),
        "same_grade": float((first.grade == second.grade).mean()),
        "largest_probability_difference": float(distance.max()),
        "mean_probability_difference": float(distance.mean()),
        **figures,
    }
