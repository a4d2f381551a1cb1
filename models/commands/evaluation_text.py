"""Findings of `headroom evaluate`, as plain values for JSON and as text for people."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.commands.terminal import table
from models.quality.bootstrap import Interval
from models.quality.comparison import Comparison
from models.quality.evaluation import Evaluation

WIDTH = 100
"""The widest table, in characters; what is wider becomes several tables."""


def as_document(comparison: Comparison, data: Path) -> dict[str, Any]:
    """Return all results as values that orjson writes. A side's `variant` is what its mask was laid on."""
    first = comparison.sides[0]
    return {
        "schema": 1,
        "model": first.model,
        "data": str(data),
        "pairs": len(first.evaluation.truth),
        "queries": first.evaluation.queries,
        "ndcg10_random_order": first.evaluation.random_order_ndcg10(),
        "sides": [
            {
                "name": side.name,
                "model": side.model,
                "variant": side.variant,
                "head_mask": side.head_mask,
                "metrics": comparison.metrics[side.name],
                "confusion": side.evaluation.confusion.tolist(),
                "calibration": side.evaluation.calibration,
                "worst_queries": comparison.worst[side.name],
            }
            for side in comparison.sides
        ],
        "differences": comparison.differences,
        "baselines": {
            one.name: {"metrics": one.metrics, "model_minus": one.model_minus} for one in comparison.baselines
        },
    }


def as_text(comparison: Comparison, data: Path) -> str:
    """Return the results as text for people: a table of metrics by side and change, then the baselines."""
    side, first = comparison.sides[0], comparison.sides[0].evaluation
    changes = {f"{pair.second} − {pair.first}": pair.change for pair in comparison.differences}
    if len(changes) == 1:
        changes = {"change": comparison.differences[0].change}
    metrics = [["", *comparison.metrics, *changes]]
    for name in comparison.metrics[side.name]:
        values = [_cell(of_side[name]) for of_side in comparison.metrics.values()]
        metrics.append([name, *values, *(_cell(change[name], sign=True) for change in changes.values())])
    baselines = [["", *(one.name for one in comparison.baselines)]]
    for name in comparison.baselines[0].metrics:
        cells = [(_cell(one.metrics[name]), one.model_minus[name]) for one in comparison.baselines]
        baselines.append([name, *(f"{value} [{_cell(minus, sign=True)}]" for value, minus in cells)])
    lines = [
        f"{side.model} on {data}: {len(first.truth)} pairs, {first.queries} queries",
        *_tables(metrics),
        "",
        f"without a model (in brackets: {side.name} minus it):",
        *_tables(baselines),
        *_calibration_lines(first),
    ]
    if first.ranked_queries:
        lines.append(f"a random order has NDCG@10 {first.random_order_ndcg10():.3f}")
    columns = (*comparison.metrics.values(), *changes.values())
    if any(math.isnan(metric.low) for column in columns for metric in column.values()):
        queries = "1 query is" if first.queries == 1 else f"{first.queries} queries are"
        lines.append(f"no interval: {queries} too few, or too few have titles of different grades")
    return "\n".join(lines)


def _cell(metric: Interval, *, sign: bool = False) -> str:
    """Return a metric with its interval. Where it has none, a line under the tables says why, once."""
    return metric.text(sign=sign).removesuffix(" (no interval)")


def _tables(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as tables of at most WIDTH characters, which share the first column."""
    widths = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    groups: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        used = widths[0] + sum(widths[other] for other in groups[-1])
        if groups[-1] and used + widths[column] - 2 > WIDTH:
            groups.append([])
        groups[-1].append(column)
    return [table([[row[0], *(row[column] for column in group)] for row in rows]) for group in groups]


def _calibration_lines(evaluation: Evaluation) -> list[str]:
    """Return each grade's mean probability and share."""
    found = evaluation.calibration
    grades = zip(found["mean_probabilities"], found["shares"], strict=True)
    cells = (f"{number}: {mean:.3f} ({share:.3f})" for number, (mean, share) in enumerate(grades))
    return ["mean probability of each grade (its share of the pairs):", f"  {', '.join(cells)}"]
