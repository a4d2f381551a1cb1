"""The report of `headroom evaluate`: report.html, one file with its plots in it, and report.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from models.commands.evaluate import words as value_and_interval
from models.numbers import fixed
from models.quality.calibration import curve
from models.quality.comparison import Comparison, Side
from models.study import page, plots
from models.study.result import Figure, Section, Table
from models.study.wording import signed, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLES = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "qwk": "QWK",
    "ndcg10": "NDCG@10",
    "query_spearman": "Spearman within queries",
    "spearman": "Spearman over all pairs",
    "ece": "calibration error of the likeliest grade",
    "classwise_ece": "calibration error of every grade",
}
FEW = 20
"""Bins with fewer pairs are left out of the calibration curve."""


def write(out: Path, comparison: Comparison, document: dict[str, Any], labels: Sequence[str]) -> None:
    """Write both files into `out`, each under its name only when it is whole."""
    out.mkdir(parents=True, exist_ok=True)
    sections = (
        _metrics(comparison),
        *((_differences(comparison),) if comparison.differences else ()),
        _baselines(comparison),
        _calibration(comparison, document),
        _confusion(comparison, labels),
        *(_worst(comparison, side, labels) for side in comparison.sides),
    )
    drawings = {figure.name: plots.svg(figure.draw()) for section in sections for figure in section.figures}
    title = f"Evaluation of {' and '.join(dict.fromkeys(side.model for side in comparison.sides))}"
    verdict, conclusion = _conclusion(comparison, document)
    html = page.html(title, verdict, conclusion, sections, drawings)
    for name, data in (
        ("report.html", html.encode()),
        ("report.json", orjson.dumps(document, option=orjson.OPT_INDENT_2)),
    ):
        draft = out / f"{name}.tmp"
        draft.write_bytes(data)
        draft.replace(out / name)


def _conclusion(comparison: Comparison, document: dict[str, Any]) -> tuple[str, str]:
    """Return the verdict in one sentence, and the paragraph that it follows from."""
    first = comparison.sides[0]
    metrics = {name: value_and_interval(metric) for name, metric in comparison.metrics[first.name].items()}
    verdict = (
        f"{first.name}: NDCG@10 {metrics['ndcg10']}, a random order {fixed(document['ndcg10_random_order'])}."
    )
    sentences = [
        f"{document['pairs']:,} pairs of {document['queries']:,} queries from {document['data']}.",
        f"QWK {metrics['qwk']}, Spearman within queries {metrics['query_spearman']}.",
    ]
    for one in comparison.baselines:
        change = one.model_minus["ndcg10"]
        if math.isnan(change.low):
            sentences.append(
                "Too few queries have titles of different grades to compare its NDCG@10 with that of "
                f"{one.name}."
            )
            continue
        verb = (
            "is better than"
            if change.low > 0
            else "is worse than"
            if change.high < 0
            else "is not told apart from"
        )
        sentences.append(f"Its NDCG@10 {verb} that of {one.name}: {with_interval(change)}.")
    sentences.append(
        "Intervals are 95 %, by symmetric bootstrap-t over whole queries; those of differences are paired. "
        "They are not corrected for the number of comparisons."
    )
    return verdict, " ".join(sentences)


def _metrics(comparison: Comparison) -> Section:
    sides = [comparison.metrics[side.name] for side in comparison.sides]
    header = ("metric", *(side.name for side in comparison.sides))
    rows = [(title, *(value_and_interval(side[name]) for side in sides)) for name, title in TITLES.items()]
    return Section("Metrics", tables=(Table(header, tuple(rows)),))


def _differences(comparison: Comparison) -> Section:
    header = ("metric", *(f"{pair.second} − {pair.first}" for pair in comparison.differences))
    rows = tuple(
        (title, *(with_interval(pair.change[name]) for pair in comparison.differences))
        for name, title in TITLES.items()
    )
    return Section("Differences", tables=(Table(header, rows),))


def _baselines(comparison: Comparison) -> Section:
    rows = tuple(
        (one.name, TITLES[name], value_and_interval(one.metrics[name]), with_interval(one.model_minus[name]))
        for one in comparison.baselines
        for name in one.metrics
    )
    header = ("baseline", "metric", "its value", f"{comparison.sides[0].name} − baseline")
    text = (
        "What a model must beat: the share of the query's words in the title, weighted by IDF, and BM25. "
        "Word statistics are those of the file's titles. A reranker is for the order within a query, which "
        "NDCG@10 and Spearman within queries measure."
    )
    return Section("Beside word matching", (text,), (Table(header, rows),))


def _calibration(comparison: Comparison, document: dict[str, Any]) -> Section:
    rows = []
    for side in document["sides"]:
        found = side["calibration"]
        bins = found["by_expected_grade"]
        for expected, true, pairs in zip(bins["expected"], bins["true"], bins["pairs"], strict=True):
            rows.append(
                (side["name"], f"{expected:.2f}", f"{true:.2f}", signed(expected - true, 2), f"{pairs:,}")
            )
    floors = "; ".join(
        f"{side['name']} {side['calibration']['floor']['ece']:.3f} and "
        f"{side['calibration']['floor']['classwise_ece']:.3f}"
        for side in document["sides"]
    )
    text = (
        "A perfect model has calibration errors above 0, too, because pairs are few. With the probabilities "
        f"of each side they would be, for the likeliest grade and for every grade: {floors} (simulated)."
    )
    table = Table(
        ("", "expected grade", "true grade", "expected − true", "pairs"),
        tuple(rows),
        "Bins of equal width of the expected grade.",
    )
    figure = Figure(
        "calibration",
        f"How often the likeliest grade is the human one, by its probability; a point is a bin of at least "
        f"{FEW} pairs, and its size their number. On the grey line probabilities mean what they say; below "
        "it the model is too sure.",
        partial(_draw_calibration, comparison),
    )
    return Section("Calibration", (text,), (table,), (figure,))


def _draw_calibration(comparison: Comparison) -> Drawing:
    drawing, axes = plots.figure(7.5, 6)
    axes.plot((0, 1), (0, 1), color="#999999", linewidth=1)
    for number, side in enumerate(comparison.sides):
        colour, dash, marker = plots.LINES[number % len(plots.LINES)]
        points = curve(side.evaluation.truth.tolist(), side.evaluation.probabilities)
        many = points.pairs >= FEW
        axes.plot(points.confidence[many], points.accuracy[many], dash, color=colour, linewidth=1.4)
        size = 14 + 160 * points.pairs[many] / points.pairs.sum()
        axes.scatter(
            points.confidence[many],
            points.accuracy[many],
            s=size,
            color=colour,
            marker=marker,
            label=side.name,
        )
    axes.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="probability of the likeliest grade", ylabel="share that is right"
    )
    axes.legend(loc="lower right")
    return drawing


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
    header = (
        "query",
        "titles",
        "NDCG@10",
        "Spearman",
        "mean error",
        "most wrong title",
        "human grade",
        "model's",
    )
    text = "Lowest NDCG@10 first; a query whose titles all have one grade has none."
    return Section(f"Worst queries: {side.name}", (text,), (Table(header, rows),))
