"""An experiment's report for people. What it says is put together once, and shown as HTML and as text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template

from headroom.models.numbers import minute, number, outward, percent
from headroom.models.study import page
from headroom.models.study.page import Section, Table
from headroom.models.terminal import table
from headroom.service.experiments.report import shows_share

Json = dict[str, Any]
"""An answer of the service, or a part of it."""

VERDICTS = {"ship": "Ship", "stop": "Stop", "wait": "Wait", "invalid": "Not valid"}
UNKNOWN = "–"
NO_REPORT = "No analysis at present: the service cannot reach its database."
METHOD = (
    "The intervals are confidence sequences: all of them hold together at every time, so one may look as "
    "often as one likes and stop at any look.",
    "The margin is how much worse than control is still good enough. An arm is good enough once its whole "
    "interval is on the better side of the margin. The first metric decides.",
)
PREFERENCE = (
    "Each list is drawn from both arms' rankings. A title belongs to an arm if that arm ranks it next and "
    "the other does not. A unit's value is (clicks on the arm's titles − on control's) / both, from −1 to 1. "
    "The preference is its mean over the units that clicked such a title."
)
MEASURES = {
    "mean_delta": "mean score difference",
    "mean_abs_delta": "mean |score difference|",
    "rank_correlation": "rank correlation",
    "order_changed": "share of lists in another order",
    "top10_overlap": "overlap of the ten best",
    "ndcg_loss": "NDCG@10 lost",
    "seconds_delta": "time difference, seconds",
}
DRAWING = Template(Path(__file__).with_name("effects.svg.j2").read_text("utf-8"), autoescape=True)
"""Draws `panels`, which `_panel` makes, over the time from `begin` to `end`."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The words and tables of a report.

    title: the experiment and its state. headline: the verdict in a word. text: its reason. conclusion: when
        that was, and whether the units can be trusted. The three are empty without an analysis.
    """

    title: str
    headline: str
    text: str
    conclusion: str
    sections: tuple[Section, ...]


def findings(experiment: Json) -> Findings:
    """Return what the report of an answer of /v1/experiments/{name} says."""
    report = experiment.get("report")
    log = _section("Log", _log(experiment["history"]))
    if report is None:
        return Findings(_title(experiment), "", "", "", (log,))
    is_over = experiment["status"] in ("stopped", "shipped")
    conclusion = (f"On {minute(report['time'])} UTC.", report["sample_ratio"]["text"], report["retention"])
    method = METHOD if experiment.get("preference") is None else (*METHOD, PREFERENCE)
    sections = (
        _section("Arms", _arms(experiment)),
        _section("Against control", _effects(report), _other_sentences(report)),
        _section("Scored under both arms (shadow)", _shadow(report)),
        log,
        Section("Method", method),
    )
    return Findings(
        title=_title(experiment),
        headline="At the end" if is_over else VERDICTS[report["recommendation"]],
        text=report["text"],
        conclusion=" ".join(filter(None, conclusion)),
        sections=sections,
    )


def html(experiment: Json) -> str:
    """Return the report as one HTML file that needs no other, with the intervals drawn over time.

    experiment: an answer of /v1/experiments/{name}. Raises RuntimeError without an analysis.
    """
    report = experiment.get("report")
    if report is None:
        raise RuntimeError(NO_REPORT)
    found = findings(experiment)
    metrics = _metrics(report)
    last = {"time": report.get("end") or report["time"], "effects": metrics}
    looks = [*report["looks"], last]
    panels = [_panel(metric, looks) for metric in metrics]
    drawing = DRAWING.render(panels=panels, moment=minute, begin=looks[0]["time"], end=last["time"])
    what = "preference for the arm" if experiment.get("preference") else "change against control"
    caption = f"Each metric's {what} over time (UTC), with its interval."
    page_text = page.html(
        {"effects": drawing},
        title=f"Experiment {found.title}",
        verdict=f"{found.headline}: {found.text}",
        conclusion=found.conclusion,
        picture={"name": "effects", "caption": caption} if metrics else None,
        sections=found.sections,
    )
    return re.sub(r"(?<=\d) %", "\u00a0%", page_text)  # a line must not end between number and sign


def text(experiment: Json) -> str:
    """Return an answer of /v1/experiments/{name} as text for a terminal."""
    found = findings(experiment)
    parts = [found.title]
    if found.headline:
        parts += [f"{found.headline.upper()}: {found.text}", found.conclusion]
    for section in found.sections:
        if section.tables:
            parts.append(f"{section.title}:\n" + "\n\n".join(map(_lines, section.tables)))
    return "\n\n".join(parts)


def _lines(of: Table) -> str:
    """Return a table as lines. One column needs no header."""
    return table(of.rows if len(of.header) == 1 else (of.header, *of.rows))


def _title(experiment: Json) -> str:
    """Return an experiment's name and state."""
    state = [experiment["status"], f"traffic {experiment['traffic']:g}"]
    if experiment.get("paused"):
        state.append(experiment["paused"])
    if experiment["rolled_back"]:
        state.append(f"rolled back: {', '.join(experiment['rolled_back'])}")
    if experiment["shipped"]:
        state.append(f"everybody gets {experiment['shipped']}")
    elif experiment["status"] in ("shipped", "stopped", "rolled_back"):
        state.append("everybody gets the default")
    return f"{experiment['name']}: {', '.join(state)}"


def _metrics(report: Json) -> list[Json]:
    return [metric for arm in report["arms"] for metric in arm["metrics"]]


def _arms(experiment: Json) -> Table:
    rows = [
        (
            f"{arm['name']} (control)" if arm["control"] and arm["name"] != "control" else arm["name"],
            arm["variant"],
            f"{arm['weight']:,}",
            f"{arm['exposures']:,}",
        )
        for arm in experiment["arms"]
    ]
    return Table(("arm", "variant", "weight", "units"), tuple(rows))


def _effects(report: Json) -> Table:
    rows = [
        (
            metric["metric"],
            metric["arm"],
            _number(metric["control_value"]),
            _number(metric["value"]),
            *_change(metric),
            _number(metric["p_value"], digits=2),
            str(metric["decision"]).replace("_", " "),
        )
        for metric in _metrics(report)
    ]
    level = f"{100 * (1 - report['alpha']):g} % at any time"
    return Table(("metric", "arm", "control", "value", "change", level, "p", "verdict"), tuple(rows))


def _other_sentences(report: Json) -> Table:
    """Return the sentences on metrics that are not in the verdict."""
    sentences = [(metric["text"],) for metric in _metrics(report) if metric["text"] not in report["text"]]
    return Table(("result",), tuple(sentences))


def _shadow(report: Json) -> Table:
    shadows = [(arm["arm"], arm["shadow"]) for arm in report["arms"] if arm["shadow"]]
    rows = [
        (
            arm,
            MEASURES.get(name, name),
            _number(measure["mean"]),
            UNKNOWN if measure["low"] is None else outward(measure["low"], measure["high"]),
            f"{measure['units']:,}",
            f"{measure['requests']:,}",
        )
        for arm, shadow in shadows
        for name, measure in shadow["measures"].items()
    ]
    return Table(("arm", "measure", "mean", "interval", "units", "requests"), tuple(rows))


def _log(history: Sequence[Json]) -> Table:
    rows = []
    for action in history:
        traffic = "" if action["traffic"] is None else f"to {action['traffic']:g}"
        what = _words(action["kind"], action["arm"], traffic)
        why = _words(action["reason"], action["detail"])
        rows.append((minute(action["time"]), what, action["actor"], why))
    return Table(("time, UTC", "action", "by", "reason"), tuple(rows))


def _number(value: float | None, *, digits: int = 4) -> str:
    return UNKNOWN if value is None else number(value, digits=digits)


def _keys(metric: Json) -> tuple[str, str, str]:
    """Return the fields to show: shares of control's value, if they are known and the margin is one too."""
    if shows_share(metric["relative_low"], metric["margin"], is_relative=metric["margin_relative"]):
        return "relative", "relative_low", "relative_high"
    return "difference", "low", "high"


def _change(metric: Json) -> tuple[str, str]:
    """Return a change and its interval, in percent of control's value if that has one."""
    value, low, high = [metric[key] for key in _keys(metric)]
    write = percent if _keys(metric)[0] == "relative" else number
    change = UNKNOWN if value is None else write(value, digits=3, sign=True)
    return change, UNKNOWN if low is None or high is None else outward(low, high, write, sign=True)


def _panel(metric: Json, looks: Sequence[Json]) -> Json:
    """Return one metric's panel of the drawing: its lines as (time, value), and its scale.

    looks: the earlier ones, and the present one last. The scale is that of the later looks, because early
    intervals are wide.
    """
    keys = _keys(metric)
    effects = [
        (look["time"], effect)
        for look in looks
        for effect in look["effects"]
        if (effect["arm"], effect["metric"]) == (metric["arm"], metric["metric"])
    ]
    limit = None
    if metric["margin"] is not None and metric["margin_relative"] == (keys[0] == "relative"):
        limit = -metric["margin"] if metric["better"] == "higher" else metric["margin"]
    later = effects[len(effects) // 3 :]
    scaled = [0.0, limit, *(effect[key] for _, effect in later for key in keys)]
    known = [value for value in scaled if value is not None]
    lines = {
        line: [(time, effect[key]) for time, effect in effects if effect[key] is not None]
        for line, key in zip(("line", "low", "high"), keys, strict=True)
    }
    value, interval = _change(metric)
    write = percent if keys[0] == "relative" else number
    ends = [end for end in (max(known), min(known)) if end != 0]
    return {
        "name": f"{metric['arm']} on {metric['metric']}",
        "scale": [(end, write(end, digits=2, sign=True)) for end in ends],
        "change": value if interval == UNKNOWN else f"{value} ({interval})",
        "limit": limit,
        "largest": max(known),
        "smallest": min(known),
        **lines,
    }


def _section(title: str, *tables: Table) -> Section:
    """Return a section of the tables that have rows."""
    return Section(title, tables=tuple(table for table in tables if table.rows))


def _words(*words: str | None) -> str:
    return " ".join(filter(None, words))
