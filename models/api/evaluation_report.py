"""The findings of `headroom evaluate` as text for people, report.html and report.json."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from headroom.models import terminal
from headroom.models.api import order_report
from headroom.models.files import Json, write_whole
from headroom.models.numbers import fixed
from headroom.models.quality.bootstrap import MIN_QUERIES, NO_INTERVAL, Interval
from headroom.models.study import page, plots
from headroom.models.study.page import Figure, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

WIDTH = 100
"""The widest table in a terminal, in characters; what is wider becomes several tables."""

METHOD = (
    "Intervals are 95 %, by symmetric bootstrap-t over whole queries; those of differences are paired. They "
    "are not corrected for the number of comparisons. Word overlap is the share of the query's words in the "
    "title, weighted by IDF. Both baselines count words in the file's titles."
)
FEW_QUERIES = (
    f"a value alone has no interval: fewer than {MIN_QUERIES} queries (for metrics of single queries, those "
    "with titles of different grades)"
)


def tables(document: Json) -> dict[str, Table]:
    """Return the tables that the terminal and the page show, by their titles. document: of report.json."""
    sides = document["sides"]
    differences = document["differences"]
    metrics = {side["name"]: _texts(side["metrics"]) for side in sides}
    for pair in differences:
        name = f"{pair['second']} − {pair['first']}" if len(differences) > 1 else "change"
        metrics[name] = _texts(pair["change"], sign=True)
    baselines = {}
    for name, baseline in document["baselines"].items():
        minus = _texts(baseline["model_minus"], sign=True)
        values = _texts(baseline["metrics"])
        baselines[name] = {metric: f"{value} [{minus[metric]}]" for metric, value in values.items()}
    without = f"Without a model (in brackets: {sides[0]['name']} minus it):"
    found = {"Metrics": _table(metrics)}
    if differences:
        found["Margin"] = _margin_table(document)
    found["Compared with word matching"] = _table(baselines, without)
    found["Compared with the order"] = order_report.table(document)
    calibration = {
        side["name"]: {
            f"grade {grade}": f"{mean:.3f} ({share:.3f})"
            for grade, (mean, share) in enumerate(zip(*side["calibration"].values(), strict=True))
        }
        for side in sides
        if "calibration" in side
    }
    if calibration:
        found["Calibration"] = _table(calibration, "Mean probability of each grade (its share of the pairs):")
    return found


def _margin_table(document: Json) -> Table:
    """Return for each pair of sides, by metric, whether a fall of the margin is excluded."""
    columns: dict[str, dict[str, str]] = {}
    for pair in document["differences"]:
        cells = {}
        for metric, needed in pair["queries_needed"].items():
            if pair["margin_excluded"][metric]:
                cells[metric] = "excluded"
            elif pair["change"][metric].is_below(-document["margin"]):
                cells[metric] = "it falls by more"
            elif needed is None:
                cells[metric] = "too few queries"
            elif needed <= document["queries"]:
                cells[metric] = "not excluded"
            else:
                cells[metric] = f"not excluded: {needed:,} needed"
        name = f"{pair['second']} − {pair['first']}" if len(document["differences"]) > 1 else "change"
        columns[name] = cells
    return _table(
        columns,
        f"Is a fall of {document['margin']:g} excluded? Needed: queries like these {document['queries']:,} "
        "that would show it if nothing changes.",
    )


def verdicts(document: Json) -> list[str]:
    """Return a sentence about each other side's change from the first one, and one about each side that is
    not shown to rank better than a random order."""
    first = document["sides"][0]["name"]
    sentences = [pair["verdict"] for pair in document["differences"] if pair["first"] == first]
    for side in document["sides"]:
        over = side["over_random_order"]
        if not over.is_above(0):
            sentences.append(
                f"{side['name']} is not shown to rank better than a random order: its NDCG@10 less that of a "
                f"random order is {over.text(sign=True)}."
            )
    return sentences


def _texts(metrics: dict[str, Interval], *, sign: bool = False) -> dict[str, str]:
    return {name: value.text(sign=sign).removesuffix(NO_INTERVAL) for name, value in metrics.items()}


def _table(columns: dict[str, dict[str, str]], caption: str = "") -> Table:
    """Return a table. columns: the cells of each column by the names of the rows; a missing one is empty."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = ((name, *(column.get(name, "") for column in columns.values())) for name in names)
    return Table(("", *columns), tuple(rows), caption)


def as_text(document: Json) -> str:
    """Return the results as text for people."""
    lines = [
        order_report.headline(document),
        heading(document),
        *(textwrap.fill(sentence, WIDTH) for sentence in verdicts(document)),
    ]
    for table in tables(document).values():
        lines += [*([f"\n{table.caption}"] if table.caption else []), *_fitted([table.header, *table.rows])]
    lines.append(f"\na random order has NDCG@10 {fixed(document['ndcg10_random_order'])}")
    if any(
        interval.low != interval.low for side in document["sides"] for interval in side["metrics"].values()
    ):
        lines.append(FEW_QUERIES)
    for stage, count in (document["stages"] or {}).items():
        lines.append(f"{count} {'pair' if count == 1 else 'pairs'} ended at stage {stage}")
    return "\n".join(lines)


def heading(document: Json) -> str:
    """Say which pairs the figures are of, and how many queries count for those of an order."""
    read = "{model} on {data}: {pairs:,} pairs, {queries:,} queries".format(**document)
    return f"{read} ({document['ranked_queries']:,} with titles of different grades)"


def _fitted(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as tables of at most WIDTH characters, which share the first column."""
    first, *columns = zip(*rows, strict=True)
    groups: list[list[tuple[str, ...]]] = []
    used = WIDTH
    for column in columns:
        width = 2 + max(map(len, column))
        if used + width > WIDTH:
            groups.append([first])
            used = max(map(len, first))
        groups[-1].append(column)
        used += width
    return [terminal.table(list(zip(*group, strict=True))) for group in groups]


def write(out: Path, document: Json, labels: Sequence[str]) -> None:
    """Write both files into `out`, each under its name only when it is whole."""
    first = document["sides"][0]
    order = fixed(document["ndcg10_random_order"])
    of_first = f"{first['name']}: NDCG@10 {first['metrics']['ndcg10'].text()}, a random order {order}."
    ndcg10 = picture(document)
    about_order = order_report.section(document)
    by_class = about_order.picture
    assert by_class is not None
    html = page.html(
        {each.name: plots.svg(each.draw) for each in (ndcg10, by_class)},
        picture=ndcg10,
        title=f"Evaluation of {' and '.join(dict.fromkeys(side['model'] for side in document['sides']))}",
        verdict=f"{order_report.headline(document)}. " + (" ".join(verdicts(document)) or of_first),
        conclusion=f"{heading(document)}.",
        sections=(
            about_order,
            *(
                Section(title, tables=(table,))
                for title, table in tables(document).items()
                if table not in about_order.tables
            ),
            *(_of_side(side, labels) for side in document["sides"]),
            Section("Intervals and baselines", (METHOD,)),
        ),
    )
    write_whole(out / "report.html", html.encode())
    write_whole(out / "report.json", orjson.dumps(document, option=orjson.OPT_INDENT_2))


def picture(document: Json) -> Figure:
    """Return the picture of a side's NDCG@10; of several sides, of their paired changes from the first."""
    if document["differences"]:
        caption = (
            f"The change of NDCG@10 from {document['sides'][0]['name']}, paired by query, with its 95 % "
            f"interval. Dashed: no change, and the margin of {document['margin']:g}."
        )
        return Figure("ndcg10", caption, partial(_draw_changes, document))
    caption = "NDCG@10 with its 95 % interval, with word matching and (dashed) a random order."
    return Figure("ndcg10", caption, partial(_draw_ndcg10, document))


def _draw_ndcg10(document: Json) -> Drawing:
    """Draw a point with its interval for each side and each baseline, the first side on top."""
    intervals = {side["name"]: side["metrics"]["ndcg10"] for side in document["sides"]}
    colours = [plots.BLUE] * len(intervals)
    for name, baseline in document["baselines"].items():
        intervals[name] = baseline["metrics"]["ndcg10"]
        colours.append(plots.GREY)
    drawing, axes = plots.intervals(intervals, colours, "NDCG@10")
    if np.isfinite(document["ndcg10_random_order"]):
        axes.axvline(document["ndcg10_random_order"], color=plots.GREY, ls="--", lw=1)
    return drawing


def _draw_changes(document: Json) -> Drawing:
    """Draw a point with its interval for the change of each other side, and of each baseline, from the
    first side."""
    first = document["sides"][0]["name"]
    changes = {
        pair["second"]: pair["change"]["ndcg10"] for pair in document["differences"] if pair["first"] == first
    }
    colours = [plots.BLUE] * len(changes)
    for name, baseline in document["baselines"].items():
        minus = baseline["model_minus"]["ndcg10"]
        changes[name] = Interval(-minus.value, -minus.high, -minus.low)
        colours.append(plots.GREY)
    drawing, axes = plots.intervals(changes, colours, f"change of NDCG@10 from {first}")
    axes.axvline(0, color=plots.GREY, ls="--", lw=1)
    axes.axvline(-document["margin"], color=plots.ORANGE, ls="--", lw=1)
    return drawing


def _of_side(side: Json, labels: Sequence[str]) -> Section:
    """Return the confusion matrix of a side, if it has grades, and its worst queries.

    side: what the document holds of a model.
    """
    found = []
    words = (
        "Queries of the lowest NDCG@10, each with the title that is furthest from where its grade belongs."
    )
    if "confusion" in side:
        words = "Queries of the lowest NDCG@10, each with the title whose grade is missed by most."
        counts = {
            f"model: {label}": dict(zip(labels, map("{:,}".format, column), strict=True))
            for label, column in zip(labels, zip(*side["confusion"], strict=True), strict=True)
        }
        found = [_table(counts, "Number of pairs by human grade (rows) and model's grade (columns).")]
    worst = [
        tuple(fixed(value, 2) if isinstance(value, float) else str(value) for value in query.values())
        for query in side["worst_queries"]
    ]
    headers = tuple(name.replace("_", " ") for name in side["worst_queries"][0])
    return Section(side["name"], tables=(*found, Table(headers, tuple(worst), words)))
