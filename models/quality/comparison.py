"""Compares models, masks, number formats and lexical baselines on the same pairs; finds the worst queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from models.quality.bootstrap import Interval, resample
from models.quality.evaluation import Evaluation, changes_of, differences, evaluation_of, intervals_of
from models.quality.labelled import LabelledPair
from models.quality.lexical import bm25, idf_overlap

if TYPE_CHECKING:
    from models.classifier import Scores

RANKING = ("ndcg10", "query_spearman", "spearman")
"""The metrics that need an order alone, no grades: those that a lexical baseline has too."""

WORST = 20
"""How many queries a report shows."""


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


@dataclass(frozen=True)
class Difference:
    """The metrics of `second` minus those of `first`, with paired intervals."""

    first: str
    second: str
    change: dict[str, Interval]


@dataclass(frozen=True)
class Baseline:
    """A way to rank titles without a model: its metrics, and the first side's minus its own."""

    name: str
    metrics: dict[str, Interval]
    model_minus: dict[str, Interval]


@dataclass(frozen=True)
class WorstQuery:
    """A query that a model ranks badly. title: the one whose grade it misses by most."""

    query: str
    pairs: int
    ndcg10: float
    query_spearman: float
    mean_error: float
    title: str
    grade: int
    expected_grade: float


@dataclass(frozen=True)
class Comparison:
    """All that `headroom evaluate` finds.

    metrics, worst: by the name of the side. differences: of each two sides, the earlier one first.
    """

    sides: tuple[Side, ...]
    metrics: dict[str, dict[str, Interval]]
    differences: tuple[Difference, ...]
    baselines: tuple[Baseline, ...]
    worst: dict[str, list[WorstQuery]]


def compare(sides: Sequence[Side], pairs: Sequence[LabelledPair], *, resamples: int, seed: int) -> Comparison:
    """Compare the sides with each other, and the first one with the baselines. All are of these pairs."""
    first = sides[0].evaluation
    counts = resample(first.clusters, resamples, seed)
    draws = {one.name: one.evaluation.draws(counts) for one in sides}
    changes = [
        Difference(one.name, other.name, changes_of(draws[one.name], draws[other.name], counts))
        for one, other in combinations(sides, 2)
    ]
    baselines = []
    for name, evaluation in rankings(pairs, first.grades).items():
        drawn = evaluation.draws(counts)
        metrics, change = intervals_of(drawn, counts), changes_of(drawn, draws[sides[0].name], counts)
        baselines.append(Baseline(name, {m: metrics[m] for m in RANKING}, {m: change[m] for m in RANKING}))
    return Comparison(
        tuple(sides),
        {name: intervals_of(drawn, counts) for name, drawn in draws.items()},
        tuple(changes),
        tuple(baselines),
        {one.name: worst_queries(one.evaluation, pairs) for one in sides},
    )


def rankings(pairs: Sequence[LabelledPair], grades: int) -> dict[str, Evaluation]:
    """Return the lexical baselines, as evaluations of which only RANKING means anything.

    Their word statistics are those of the file's own titles.
    """
    titles = sorted({pair.title for pair in pairs})
    found = {}
    for name, scorer in (("word overlap", idf_overlap(titles)), ("BM25", bm25(titles))):
        scores = np.array([scorer(pair.query, pair.title) for pair in pairs])
        share = scores / max(scores.max(), 1e-12)
        probabilities = np.zeros((len(pairs), grades))
        probabilities[:, 0], probabilities[:, -1] = 1 - share, share
        found[name] = evaluation_of(pairs, probabilities)
    return found


def worst_queries(
    evaluation: Evaluation, pairs: Sequence[LabelledPair], limit: int = WORST
) -> list[WorstQuery]:
    """Return the queries of lowest NDCG@10, then of largest error; titles of one grade come last."""
    found = evaluation.by_query()
    rank = np.nan_to_num(found["ndcg10"], nan=2.0)
    distance = np.abs(evaluation.expected - evaluation.truth)
    worst = []
    for query in np.lexsort((-found["mean_error"], rank))[:limit]:
        rows = np.flatnonzero(evaluation.query_of == query)
        missed = int(rows[distance[rows].argmax()])
        worst.append(
            WorstQuery(
                pairs[missed].query,
                len(rows),
                float(found["ndcg10"][query]),
                float(found["query_spearman"][query]),
                float(found["mean_error"][query]),
                pairs[missed].title,
                pairs[missed].grade,
                float(evaluation.expected[missed]),
            )
        )
    return worst


@dataclass(frozen=True, slots=True)
class Agreement:
    """The distance between the scores of a model and of a faster form of it.

    same_grade: the share of pairs with the same grade in both. largest and mean: of the distance between the
    two probabilities of a grade. before, after: metrics on labelled pairs by name, empty without labels.
    change: the second's metrics minus the first's, with paired intervals.
    """

    pairs: int
    same_grade: float
    largest_probability_difference: float
    mean_probability_difference: float
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    change: dict[str, Interval] = field(default_factory=dict)


def agreement(first: Scores, second: Scores, labelled: Sequence[LabelledPair] | None = None) -> Agreement:
    """Compare two models' scores of the same pairs. labelled: the pairs, if their grades are known."""
    distance = np.abs(first.probabilities - second.probabilities)
    found = Agreement(
        pairs=len(distance),
        same_grade=float((first.grade == second.grade).mean()),
        largest_probability_difference=float(distance.max()),
        mean_probability_difference=float(distance.mean()),
    )
    if labelled is None:
        return found
    before, after = (
        evaluation_of(labelled, scores.probabilities, scores.raw_score) for scores in (first, second)
    )
    change = differences(before, after)
    return replace(found, before=before.metrics(), after=after.metrics(), change=change)
