"""An experiment's report to share: one HTML file with the verdict, the intervals drawn, and tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template

from headroom.models.numbers import minute, number, percent
from headroom.models.study import page
from headroom.models.study.result import Section, Table

Json = dict[str, Any]
"""An answer of the service, or a part of it."""

VERDICTS = {"ship": "Ship", "stop": "Stop", "wait": "Wait", "invalid": "Not valid"}
UNKNOWN = "–"
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
VOTES = (
    "metric",
    "units that clicked more of the arm's titles : of control's : of both alike",
    "lists that differ",
)
DRAWING = Template(Path(__file__).with_name("effects.svg.j2").read_text("utf-8"), autoescape=True)
"""Draws `panels`, which `_panel` makes, over the time from `begin` to `end`."""


def headline(experiment: Json) -> str:
    """Return "Ship", "Wait", …, or "At the end" if the experiment is over."""
    if experiment["status"] in ("stopped", "shipped"):
        return "At the end"
    return VERDICTS[experiment["report"]["recommendation"]]


def html(experiment: Json) -> str:
    """Return the report of an answer of /v1/experiments/{name}. Raises RuntimeError without an analysis."""
    report = experiment.get("report")
    if report is None:
        raise RuntimeError("there is no analysis at present: the service cannot reach its database")
    metrics = [metric for arm in report["arms"] for metric in arm["metrics"]]
    last = {"time": report.get("end") or report["time"], "effects": metrics}
    looks = [*report["looks"], last]
    panels = [_panel(metric, looks) for metric in metrics]
    drawing = DRAWING.render(panels=panels, moment=minute, begin=looks[0]["time"], end=last["time"])
    what = "preference for the arm" if experiment.get("preference") else "change against control"
    caption = f"Each metric's {what} over time (UTC), with its interval."
    page_text = page.html(
        {"effects": drawing},
        title=f"Experiment {experiment['name']}",
        verdict=f"{headline(experiment)}: {report['text']}",
        conclusion=f"{_progress(report, metrics)}, on {minute(report['time'])} UTC. "
        + " ".join(filter(None, (report["sample_ratio"]["text"], report.get("retention")))),
        picture={"name": "effects", "caption": caption} if metrics else None,
        sections=_sections(experiment, metrics),
    )
    return re.sub(r"(?<=\d) %", "\u00a0%", page_text)  # a line must not end between number and sign


def _progress(report: Json, metrics: Sequence[Json]) -> str:
    """Return how many of the planned units there are."""
    planned = f"{report['planned_units']:,} planned units"
    if metrics and metrics[0].get("preference"):
        return f"{metrics[0]['units']:,} of {planned} have clicked a title of one arm"
    return f"{sum(report['exposures'].values()):,} of {planned}"


def _sections(experiment: Json, metrics: Sequence[Json]) -> tuple[Section, ...]:
    report = experiment["report"]
    units = [(arm, f"{count:,}") for arm, count in report["exposures"].items()]
    effects = [
        (metric["arm"], metric["metric"], _with_interval(metric), metric["text"]) for metric in metrics
    ]
    votes = [
        (metric["metric"], votes_text(metric["preference"]), differing_text(metric["preference"]))
        for metric in metrics
        if metric.get("preference")
    ]
    title = "Preference over control" if votes else "Effects against control"
    column = "preference" if votes else "change"
    shadows = [(arm["arm"], arm["shadow"]["text"]) for arm in report["arms"] if arm["shadow"]]
    log = [
        (
            minute(action["time"]),
            _words(action["kind"], action["arm"]),
            action["actor"],
            _words(action["reason"], action["detail"]),
        )
        for action in experiment["history"]
    ]
    return (
        _section("Arms", ("arm", "units"), units),
        _section(title, ("arm", "metric", column, "result"), effects),
        *([_section("Clicks", VOTES, votes)] if votes else []),
        _section("Shadow", ("arm", "scored under both arms"), shadows),
        _section("Log", ("time, UTC", "action", "by", "reason"), log),
        Section("Method", (*METHOD, *(PREFERENCE if votes else ()))),
    )


def _keys(metric: Json) -> tuple[str, str, str]:
    """Return the fields to show: shares of control's value, if they are known and the margin is one too."""
    has_share = metric["relative_low"] is not None and metric["relative_high"] is not None
    if has_share and (metric["margin"] is None or metric["margin_relative"]):
        return "relative", "relative_low", "relative_high"
    return "difference", "low", "high"


def change_text(metric: Json) -> tuple[str, str]:
    """Return a change and its interval, in percent of control's value if that has one."""
    keys = _keys(metric)
    write = percent if keys[0] == "relative" else number
    value, low, high = [
        UNKNOWN if metric[key] is None else write(metric[key], digits=3, sign=True) for key in keys
    ]
    return value, UNKNOWN if UNKNOWN in (low, high) else f"{low} to {high}"


def votes_text(preference: Json) -> str:
    """Return wins, losses and ties."""
    return " : ".join(f"{preference[key]:,}" for key in ("wins", "losses", "ties"))


def differing_text(preference: Json) -> str:
    """Return how many of the lists differ."""
    lists = preference["impressions"]
    differing = preference["differing"]
    share = f" ({percent(differing / lists)})" if lists else ""
    return f"{differing:,} of {lists:,}{share}"


def _with_interval(metric: Json) -> str:
    value, interval = change_text(metric)
    return value if interval == UNKNOWN else f"{value} ({interval})"


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
    return {
        "name": f"{metric['arm']} on {metric['metric']}",
        "change": _with_interval(metric),
        "limit": limit,
        "largest": max(known),
        "smallest": min(known),
        **lines,
    }


def _section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Section:
    return Section(title, tables=(Table(head, tuple(rows)),) if rows else ())


def _words(*words: str | None) -> str:
    return " ".join(filter(None, words))
