"""The findings of `headroom evaluate`: plain values, text for people, report.html and report.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from models.commands.terminal import table
from models.files import write_whole
from models.numbers import fixed
from models.quality.bootstrap import Interval
from models.quality.comparison import Comparison, Side
from models.quality.evaluation import Evaluation
from models.study import page, plots
from models.study.result import Figure, Section, Table
from models.study.wording import NAMES, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLES = NAMES | {
    "query_spearman": "Spearman within queries",
    "spearman": "Spearman over all pairs",
    "ece": "calibration error of the likeliest grade",
}
WIDTH = 100
"""The widest table in a terminal, in characters; what is wider becomes several tables."""


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


def write(out: Path, comparison: Comparison, document: dict[str, Any], labels: Sequence[str]) -> None:
    """Write both files into `out`, each under its name only when it is whole."""
    sections = (
        *_metrics(comparison),
        _calibration(document["sides"]),
        _confusion(comparison, labels),
        *(_worst(comparison, side, labels) for side in comparison.sides),
    )
    picture = Figure(
        "ndcg10",
        "NDCG@10 with its 95 % interval, beside word matching and (dashed) a random order.",
        partial(_draw_ndcg10, comparison, document["ndcg10_random_order"]),
    )
    drawings = {picture.name: plots.svg(picture.draw)}
    title = f"Evaluation of {' and '.join(dict.fromkeys(side.model for side in comparison.sides))}"
    verdict, conclusion = _conclusion(comparison, document)
    values = {"title": title, "verdict": verdict, "conclusion": conclusion, "picture": picture}
    write_whole(out / "report.html", page.html(drawings, sections=sections, **values).encode())
    write_whole(out / "report.json", orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _conclusion(comparison: Comparison, document: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict in one sentence, and the paragraph that it follows from."""
    first = comparison.sides[0]
    metrics = comparison.metrics[first.name]
    random_order = fixed(document["ndcg10_random_order"])
    return (
        f"{first.name}: NDCG@10 {metrics['ndcg10'].text()}, a random order {random_order}.",
        f"{document['pairs']:,} pairs of {document['queries']:,} queries from {document['data']}. "
        f"QWK {metrics['qwk'].text()}, Spearman within queries {metrics['query_spearman'].text()}. "
        "Intervals are 95 %, by symmetric bootstrap-t over whole queries; those of differences are paired. "
        "They are not corrected for the number of comparisons.",
    )


def _draw_ndcg10(comparison: Comparison, random_order: float) -> Drawing:
    """Draw a point with its interval for each side and each baseline, the first side on top."""
    shown = {name: metrics["ndcg10"] for name, metrics in comparison.metrics.items()}
    shown |= {one.name: one.metrics["ndcg10"] for one in comparison.baselines}
    drawing, axes = plots.figure(9, 1.2 + 0.45 * len(shown))
    for row, one in enumerate(shown.values()):
        colour = plots.BLUE if row < len(comparison.metrics) else plots.GREY
        axes.plot([one.low, one.high], [row, row], color=colour)
        axes.plot(one.value, row, "o", color=colour)
    if np.isfinite(random_order):
        axes.axvline(random_order, color=plots.GREY, ls="--", lw=1)
    axes.set(xlabel="NDCG@10", ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(range(len(shown)), list(shown))
    return drawing


def _metrics(comparison: Comparison) -> list[Section]:
    """Return the tables of metrics, of their differences if there are any, and of the baselines."""
    sides, pairs, first = comparison.metrics, comparison.differences, comparison.sides[0].name
    values = tuple((title, *(side[name].text() for side in sides.values())) for name, title in TITLES.items())
    changes = tuple(
        (title, *(pair.change[name].text(sign=True) for pair in pairs)) for name, title in TITLES.items()
    )
    beside = tuple(
        (one.name, TITLES[name], one.metrics[name].text(), one.model_minus[name].text(sign=True))
        for one in comparison.baselines
        for name in one.metrics
    )
    differences = ("metric", *(f"{pair.second} − {pair.first}" for pair in pairs))
    text = (
        "What a model must beat: the share of the query's words in the title, weighted by IDF, and BM25. "
        "Word statistics are those of the file's titles. A reranker is for the order within a query, which "
        "NDCG@10 and Spearman within queries measure."
    )
    baselines = ("baseline", "metric", "its value", f"{first} − baseline")
    return [
        Section("Metrics", tables=(Table(("metric", *sides), values),)),
        *([Section("Differences", tables=(Table(differences, changes),))] if pairs else []),
        Section("Beside word matching", (text,), (Table(baselines, beside),)),
    ]


def _calibration(sides: Sequence[dict[str, Any]]) -> Section:
    """Return each grade's mean probability beside its share."""
    rows = [
        (side["name"], str(grade), f"{mean:.3f}", f"{share:.3f}", signed(mean - share, 3))
        for side in sides
        for grade, (mean, share) in enumerate(
            zip(side["calibration"]["mean_probabilities"], side["calibration"]["shares"], strict=True)
        )
    ]
    header = ("", "grade", "mean probability", "share of the pairs", "difference")
    return Section("Calibration", tables=(Table(header, tuple(rows)),))


def _confusion(comparison: Comparison, labels: Sequence[str]) -> Section:
    tables = tuple(
        Table(
            (f"{side.name}: human grade", *(f"model: {label}" for label in labels)),
            tuple(
                (label, *(f"{count:,} ({count / max(sum(row), 1):.0%})" for count in row))
                for label, row in zip(labels, side.evaluation.confusion.tolist(), strict=True)
            ),
            "Number of pairs, and their share of the human grade's. The diagonal is right.",
        )
        for side in comparison.sides
    )
    return Section("Confusion", tables=tables)


def _worst(comparison: Comparison, side: Side, labels: Sequence[str]) -> Section:
    rows = tuple(
        (
            query.query,
            str(query.pairs),
            fixed(query.ndcg10, 2),
            fixed(query.query_spearman, 2),
            f"{query.mean_error:.2f}",
            query.title,
            f"{query.grade} {labels[query.grade]}",
            f"{query.expected_grade:.2f}",
        )
        for query in comparison.worst[side.name]
    )
    header = ("query", "titles", "NDCG@10", "Spearman", "mean error", "most wrong title", "human grade")
    text = "Lowest NDCG@10 first; a query whose titles all have one grade has none."
    return Section(f"Worst queries: {side.name}", (text,), (Table((*header, "model's"), rows),))
