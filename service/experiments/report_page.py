"""An experiment's report to share: one HTML file with the verdict, the intervals drawn, and tables."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Template

from models.numbers import number, percent
from models.study import page
from models.study.result import Section, Table

VERDICTS = {"ship": "Ship", "stop": "Stop", "wait": "Wait", "invalid": "Not valid"}
METHOD = (
    "The intervals are confidence sequences: all of them hold together at every time, so one may look as "
    "often as one likes and stop at any look.",
    "The margin is how much worse than control is still good enough. An arm is good enough once its whole "
    "interval is on the better side of the margin. The first metric decides.",
)
DRAWING = Template(Path(__file__).with_name("course.svg.j2").read_text("utf-8"), autoescape=True)


def begin_of_verdict(experiment: dict[str, Any]) -> str:
    """Return "Ship", "Wait", …, or "At the end" if the experiment is over."""
    if experiment["status"] in ("stopped", "shipped"):
        return "At the end"
    return VERDICTS[experiment["report"]["recommendation"]]


def html(experiment: dict[str, Any], looks: Sequence[dict[str, Any]]) -> str:
    """Return the report.

    experiment: an answer of /v1/experiments/{name}. looks: those of its /course. Raises RuntimeError if there
    is no analysis.
    """
    report = experiment.get("report")
    if report is None:
        raise RuntimeError("there is no analysis at present: the service cannot reach its database")
    units = sum(report["exposures"].values())
    caption = "Each metric's change against control over time (UTC), with its interval."
    metrics = [metric for arm in report["arms"] for metric in arm["metrics"]]
    shadows = [(arm["arm"], arm["shadow"]["text"]) for arm in report["arms"] if arm["shadow"]]
    looks = [*(look for look in looks if look["time"] < report["time"]), report | {"metrics": metrics}]
    courses = [_course(metric, looks) for metric in metrics]
    shown = page.html(
        {"course": DRAWING.render(courses=courses, begin=_moment(looks[0]), end=_moment(report))},
        title=f"Experiment {experiment['name']}",
        verdict=f"{begin_of_verdict(experiment)}: {report['text']}",
        conclusion=f"{units:,} of {report['planned_units']:,} planned units, on {_moment(report)} UTC. "
        + report["sample_ratio"]["text"],
        picture={"name": "course", "caption": caption} if metrics else None,
        sections=(
            _section("Arms", ("arm", "units"), [(arm, f"{n:,}") for arm, n in report["exposures"].items()]),
            _section(
                "Effects against control",
                ("arm", "metric", "change", "result"),
                [(one["arm"], one["metric"], _change(one), one["text"]) for one in metrics],
            ),
            _section("Shadow", ("arm", "scored under both arms"), shadows),
            _section(
                "Log",
                ("time, UTC", "action", "by", "reason"),
                [
                    (
                        _moment(entry),
                        " ".join(filter(None, (entry["kind"], entry["arm"]))),
                        entry["actor"],
                        " ".join(filter(None, (entry["reason"], entry["detail"]))),
                    )
                    for entry in experiment["history"]
                ],
            ),
            Section("Method", METHOD),
        ),
    )
    return re.sub(r"(?<=\d) %", "\u00a0%", shown)  # a line must not end between number and sign


def _keys(metric: dict[str, Any]) -> tuple[str, str, str]:
    """Return the fields to show: shares of control's value, if they are known and the margin is one too."""
    has_share = metric["relative_low"] is not None and metric["relative_high"] is not None
    if has_share and (metric["margin"] is None or metric["margin_relative"]):
        return "relative", "relative_low", "relative_high"
    return "difference", "low", "high"


def change(metric: dict[str, Any]) -> tuple[str, str]:
    """Return a change and its interval, in percent of control's value if that has one."""
    keys = _keys(metric)
    text = percent if keys[0] == "relative" else number
    value, *ends = (None if metric[key] is None else text(metric[key], digits=3, sign=True) for key in keys)
    return value or "–", "–" if None in ends else " to ".join(map(str, ends))


def _change(metric: dict[str, Any]) -> str:
    value, interval = change(metric)
    return value if interval == "–" else f"{value} ({interval})"


def _course(metric: dict[str, Any], looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one metric's part of the drawing: places and heights from 0, left and top, to 1.

    looks: those of /v1/experiments/{name}/course, and the present one last. The scale is that of the later
    looks, because early intervals are wide.
    """
    keys = _keys(metric)
    points = [
        (look["time"], *(one[key] for key in keys))
        for look in looks
        for one in look["metrics"]
        if (one["arm"], one["metric"]) == (metric["arm"], metric["metric"])
    ]
    has_limit = metric["margin"] is not None and metric["margin_relative"] == (keys[0] == "relative")
    limit = metric["margin"] * (-1 if metric["better"] == "higher" else 1) if has_limit else 0.0
    known = [0.0, limit]
    known += [value for point in points[len(points) // 3 :] for value in point[1:] if value is not None]
    begin, seconds = looks[0]["time"], (looks[-1]["time"] - looks[0]["time"]) or 1.0

    def at(moment: float, value: float) -> tuple[float, float]:
        height = (max(known) - value) / ((max(known) - min(known)) or 1.0)
        return (moment - begin) / seconds, min(1.0, max(0.0, height))

    return {
        "name": f"{metric['arm']} on {metric['metric']}",
        "change": _change(metric),
        "zero": at(begin, 0.0)[1],
        "limit": at(begin, limit)[1] if has_limit else None,
        "line": [at(moment, value) for moment, value, *_ in points if value is not None],
        "low": [at(moment, low) for moment, _, low, _ in points if low is not None],
        "high": [at(moment, high) for moment, *_, high in points if high is not None],
    }


def _section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Section:
    return Section(title, tables=(Table(head, tuple(rows)),) if rows else ())


def _moment(what: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(what['time'], UTC):%Y-%m-%d %H:%M}"
