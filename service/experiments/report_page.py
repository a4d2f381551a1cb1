"""An experiment's report for people. What it says is put together once, and shown as HTML and as text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template

from headroom.models.numbers import minute, number, percent
from headroom.models.study import page
from headroom.models.study.page import Section, Table
from headroom.models.terminal import table

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
    "The preference is its mean over the units that clicked such a title.",
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
    """What a report says.

    title: the experiment and its state. headline: the verdict in a word. text: its reason. conclusion: how
        far the experiment is, and whether its units can be trusted. The three are empty without an analysis.
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
    metrics = _metrics(report)
    is_over = experiment["status"] in ("stopped", "shipped")
    conclusion = (
        f"{_progress(report, metrics)}, on {minute(report['time'])} UTC.",
        report["sample_ratio"]["text"],
        report.get("retention"),
    )
    has_preference = any(metric.get("preference") for metric in metrics)
    title = "Preference over control" if has_preference else "Effects against control"
    effects = _preferences(report, metrics) if has_preference else _effects(report, metrics)
    sections = (
        _section("Arms", _arms(experiment)),
        _section(title, effects, _sentences(metric["text"] for metric in _unsaid(report, metrics))),
        _section("Scored under both arms (shadow)", *_shadow(report)),
        log,
        Section("Method", (*METHOD, *(PREFERENCE if has_preference else ()))),
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


def text(experiment: Json, *, is_analysed: bool = True) -> str:
    """Return an answer of /v1/experiments/{name} as text for a terminal.

    is_analysed: whether the request asked for the analysis, so that its absence is worth a sentence.
    """
    found = findings(experiment)
    parts = [found.title]
    if found.headline:
        parts += [f"{found.headline.upper()}: {found.text}", found.conclusion]
    elif is_analysed:
        parts.append(NO_REPORT)
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


def _progress(report: Json, metrics: Sequence[Json]) -> str:
    """Return how many of the planned units there are."""
    planned = f"{report['planned_units']:,} planned units"
    if metrics and metrics[0].get("preference"):
        return f"{metrics[0]['units']:,} of {planned} have clicked a title of one arm"
    return f"{sum(report['exposures'].values()):,} of {planned}"


def _arms(experiment: Json) -> Table:
    """Return the arms with their units, and the share that they have and should have."""
    arms = experiment["arms"]
    units = sum(arm["exposures"] for arm in arms)
    weights = sum(arm["weight"] for arm in arms)
    is_interleaved = experiment["kind"] == "interleave"
    rows = []
    for arm in arms:
        notes = ["control"] if arm["control"] and arm["name"] != "control" else []
        notes += ["rolled back"] if arm["name"] in experiment["rolled_back"] else []
        name = f"{arm['name']} ({', '.join(notes)})" if notes else arm["name"]
        share = percent(arm["exposures"] / units) if units else UNKNOWN
        shares = () if is_interleaved else (share, percent(arm["weight"] / weights))
        rows.append((name, arm["variant"], f"{arm['exposures']:,}", *shares))
    return Table(("arm", "variant", "units", *(() if is_interleaved else ("share", "planned"))), tuple(rows))


def _effects(report: Json, metrics: Sequence[Json]) -> Table:
    rows = [
        (
            metric["metric"],
            metric["arm"],
            _number(metric["control_value"]),
            _number(metric["value"]),
            *_change(metric),
            _number(metric["p_value"], digits=2),
            _decision(metric),
        )
        for metric in metrics
    ]
    return Table(("metric", "arm", "control", "value", "change", _level(report), "p", "verdict"), tuple(rows))


def _preferences(report: Json, metrics: Sequence[Json]) -> Table:
    """Return the preferences, with the units that clicked more of either arm's titles, or alike."""
    rows = []
    for metric in metrics:
        found = metric["preference"]
        lists = found["impressions"]
        share = f" ({percent(found['differing'] / lists)})" if lists else ""
        rows.append(
            (
                metric["metric"],
                metric["arm"],
                *_change(metric),
                _number(metric["p_value"], digits=2),
                " : ".join(f"{found[key]:,}" for key in ("wins", "losses", "ties")),
                f"{found['differing']:,} of {lists:,}{share}",
                _decision(metric),
            )
        )
    votes = ("wins : losses : ties", "lists that differ", "verdict")
    return Table(("metric", "arm", "preference", _level(report), "p", *votes), tuple(rows))


def _unsaid(report: Json, metrics: Sequence[Json]) -> Iterator[Json]:
    """Yield the metrics whose sentence is not in the verdict."""
    return (metric for metric in metrics if metric["text"] not in report["text"])


def _shadow(report: Json) -> Iterator[Table]:
    shadows = [(arm["arm"], arm["shadow"]) for arm in report["arms"] if arm["shadow"]]
    yield _sentences(shadow["text"] for _, shadow in shadows)
    rows = [
        (
            arm,
            MEASURES.get(name, name),
            _number(measure["mean"]),
            _interval(measure["low"], measure["high"]),
            f"{measure['units']:,}",
            f"{measure['requests']:,}",
        )
        for arm, shadow in shadows
        for name, measure in shadow["measures"].items()
    ]
    yield Table(("arm", "measure", "mean", "interval", "units", "requests"), tuple(rows))


def _log(history: Sequence[Json]) -> Table:
    rows = []
    for action in history:
        traffic = "" if action["traffic"] is None else f"to {action['traffic']:g}"
        what = _words(action["kind"], action["arm"], traffic)
        why = _words(action["reason"], action["detail"])
        rows.append((minute(action["time"]), what, action["actor"], why))
    return Table(("time, UTC", "action", "by", "reason"), tuple(rows))


def _level(report: Json) -> str:
    return f"{100 * (1 - report['alpha']):g} % at any time"


def _decision(metric: Json) -> str:
    return str(metric["decision"]).replace("_", " ")


def _number(value: float | None, *, digits: int = 4) -> str:
    return UNKNOWN if value is None else number(value, digits=digits)


def _keys(metric: Json) -> tuple[str, str, str]:
    """Return the fields to show: shares of control's value, if they are known and the margin is one too."""
    has_share = metric["relative_low"] is not None and metric["relative_high"] is not None
    if has_share and (metric["margin"] is None or metric["margin_relative"]):
        return "relative", "relative_low", "relative_high"
    return "difference", "low", "high"


def _change(metric: Json) -> tuple[str, str]:
    """Return a change and its interval, in percent of control's value if that has one."""
    keys = _keys(metric)
    write = percent if keys[0] == "relative" else number
    value, low, high = [
        UNKNOWN if metric[key] is None else write(metric[key], digits=3, sign=True) for key in keys
    ]
    return value, UNKNOWN if UNKNOWN in (low, high) else f"{low} to {high}"


def _interval(low: float | None, high: float | None) -> str:
    return UNKNOWN if low is None or high is None else f"{_number(low)} to {_number(high)}"


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


def _sentences(sentences: Iterator[str]) -> Table:
    """Return a table of one column."""
    return Table(("result",), tuple((sentence,) for sentence in sentences))


def _words(*words: str | None) -> str:
    return " ".join(filter(None, words))
