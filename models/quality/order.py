"""Compares a model with the order that a file's titles have without it, over all queries and by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval, MetricDraws
from headroom.models.quality.classes import by_class, classes_of
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.labelled import Columns, LabelledPair
from headroom.models.quality.rankings import BY_QUERY
from headroom.models.terminal import warn_once

METRICS = (*BY_QUERY, "spearman")
"""The metrics that an order has."""


OF_ROWS = "the order in the file"
BY_WORDS = "words"


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """The order that a model is compared with, and the classes of queries in which it is.

    name: how reports call it. is_named: whether somebody said what the order is; if not, it is that of the
    rows, which may be none of results. by: one of `classes.BUILT_IN`, or a column.
    """

    name: str = OF_ROWS
    is_named: bool = False
    by: str = BY_WORDS

    @classmethod
    def of(cls, columns: Columns, by: str | None) -> GivenOrder:
        """Return the order that columns name. by: None for the number of words."""
        name = OF_ROWS
        if columns.order is not None:
            name = f"the order in {columns.order}"
        elif columns.position is not None:
            name = f"the order of the column {columns.position}"
        return cls(name, columns.order is not None or columns.position is not None, by or BY_WORDS)


def positioned(pairs: Sequence[LabelledPair], columns: Columns, source: str) -> list[LabelledPair]:
    """Return the pairs that the given order holds; a line on standard error counts the others.

    Raises ModelError if two titles of a query have one position, or no pair has any. source: for errors.
    """
    if columns.position is None and columns.order is None:
        return list(pairs)
    held = [pair for pair in pairs if pair.position is not None]
    if not held:
        raise ModelError(
            f"{columns.order} has none of the pairs of {source}: queries and ids must be the same"
        )
    seen: set[tuple[str, int | None]] = set()
    for pair in held:
        key = (pair.query, pair.position)
        if key in seen:
            raise ModelError(
                f"{source}: position {pair.position} is there twice for the query {pair.query[:40]!r}; each "
                "title of a query has its own"
            )
        seen.add(key)
    if len(held) < len(pairs):
        left_out = len(pairs) - len(held)
        warn_once(f"{source}: {left_out:,} pairs are not in {columns.order} and are left out")
    return held


def ranking_of(pairs: Sequence[LabelledPair]) -> Floats:
    """Return what ranks the pairs in their given order, (n,): the lower a title stands, the lower it is."""
    positions = [index if pair.position is None else pair.position for index, pair in enumerate(pairs)]
    return -np.array(positions, np.float64)


def is_sorted_by_grade(order: Evaluation) -> bool:
    """Return whether the titles of every query stand in the order of their grades."""
    values = order.of_list("ndcg10")
    known = values[np.isfinite(values)]
    return bool(len(known)) and bool((known > 1 - 1e-9).all())


def verdict_of(change: Interval) -> str:
    """Return whether a model's change from an order is `better`, `worse`, or `not_shown` to be either."""
    if change.is_above(0):
        return "better"
    return "worse" if change.is_below(0) else "not_shown"


def against_order(
    pairs: Sequence[LabelledPair], model: Evaluation, drawn: MetricDraws, counts: Floats, given: GivenOrder
) -> Json:
    """Return how a model compares with the given order of the pairs.

    drawn: the model's metrics on the resamples `counts`, (1 + resamples, clusters). Returns, as report.json
    has it, the order's metrics, the model's paired change from them (an Interval each), the verdict of
    NDCG@10, and the classes of `classes.by_class`.
    Raises ModelError if a query has two classes.
    """
    order = Evaluation(pairs, ranking_of(pairs), model.relevant)
    every = order.draws(counts)
    metrics = {name: every[name] for name in METRICS}
    changes = changes_of(metrics, drawn, counts)
    return {
        "metrics": intervals_of(metrics, counts),
        "model_minus": changes,
        "verdict": verdict_of(changes["ndcg10"]),
        "name": given.name,
        "sorted_by_grade": not given.is_named and is_sorted_by_grade(order),
        "by": given.by,
        "classes": by_class(model, order, classes_of(pairs, given.by), resamples=len(counts) - 1),
    }
