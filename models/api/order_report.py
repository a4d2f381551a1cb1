"""Reports how a model compares with the order that the titles had, in words and a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headroom.models.files import Json
from headroom.models.numbers import fixed
from headroom.models.quality.bootstrap import Interval
from headroom.models.study import plots
from headroom.models.study.page import Figure, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SENTENCES = {
    "better": "{model} ranks better than {order}",
    "worse": "{model} ranks worse than {order}",
    "not_shown": "{model} is not shown to rank better than {order}",
}
"""The first words of a report by the verdict."""

METHOD = (
    "Changes by class are means over the class's queries, with intervals that hold for all classes together "
    "(Bonferroni). The pooled change moves a class of few queries towards the mean of all (empirical Bayes)."
)


def headline(document: Json) -> str:
    """Return in one sentence how the first side compares with the order, and in which classes it is worse.

    document: of report.json.
    """
    order = document["baselines"]["order"]
    if order["sorted_by_grade"]:
        return (
            "The rows of each query stand in the order of their grades, which is no order of results: name "
            "the column of the order that you have with --position"
        )
    words = SENTENCES[order["verdict"]].format(model=document["sides"][0]["name"], order=order["name"])
    change = order["model_minus"]["ndcg10"].text(sign=True)
    harmed = [each for each in order["classes"] if each["high"] < 0]
    if not harmed or len(order["classes"]) < 2:
        return f"{words}: NDCG@10 {change}"
    places = "; ".join(
        f"{each['name']} {fixed(each['value'], 3, sign=True)}, {each['share']:.0%} of the queries"
        for each in harmed
    )
    return f"{words}: NDCG@10 {change}; it harms by {order['by']}: {places}"


def table(document: Json) -> Table:
    """Return the changes by class."""
    order = document["baselines"]["order"]
    rows = [
        (
            each["name"],
            f"{each['queries']:,} ({each['share']:.0%})",
            _interval(each).text(sign=True),
            fixed(each["pooled"], 3, sign=True),
        )
        for each in order["classes"]
    ]
    caption = f"NDCG@10, {document['sides'][0]['name']} minus {order['name']}, by {order['by']}:"
    return Table((order["by"], "queries", "change", "pooled"), tuple(rows), caption)


def section(document: Json) -> Section:
    """Return the part of a report about the order."""
    order = document["baselines"]["order"]
    caption = (
        f"Change of NDCG@10 from {order['name']} to {document['sides'][0]['name']}, of all queries and by "
        f"{order['by']}, with intervals; crosses are the pooled changes."
    )
    picture = Figure("order", caption, partial(_draw, document))
    return Section("Compared with the order that you have", (METHOD,), (table(document),), picture)


def _interval(each: Json) -> Interval:
    return Interval(each["value"], each["low"], each["high"])


def _draw(document: Json) -> Drawing:
    """Draw the change of all queries on top, and below it one line for each class."""
    order = document["baselines"]["order"]
    rows = {"all queries": order["model_minus"]["ndcg10"]}
    rows |= {each["name"]: _interval(each) for each in order["classes"]}
    colours = [plots.ORANGE if interval.is_below(0) else plots.BLUE for interval in rows.values()]
    drawing, axes = plots.intervals(rows, colours, f"NDCG@10 minus {order['name']}")
    pooled = [each["pooled"] for each in order["classes"]]
    axes.plot(pooled, range(1, len(rows)), "x", color=plots.GREY, ls="")
    axes.axvline(0, color=plots.GREY, ls="--", lw=1)
    return drawing
