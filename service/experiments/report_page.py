"""An experiment's report to share: one HTML file with the verdict, the intervals drawn, and tables."""

from __future__ import annotations

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
WIDTH, LEFT, RIGHT = 880, 330, 850


def html(experiment: dict[str, Any]) -> str:
    """Return the report. experiment: an answer of /v1/experiments/{name}.

    Raises RuntimeError if it holds no analysis.
    """
    report = experiment.get("report")
    if report is None:
        raise RuntimeError("there is no analysis at present: the service cannot reach its database")
    units = sum(report["exposures"].values())
    caption = "Each metric against control: the interval, 0 (no change) and the margin (dashed)."
    metrics = [metric for arm in report["arms"] for metric in arm["metrics"]]
    shadows = [(arm["arm"], arm["shadow"]["text"]) for arm in report["arms"] if arm["shadow"]]
    template = Template((Path(__file__).parent / "intervals.svg.j2").read_text("utf-8"), autoescape=True)
    return page.html(
        {"intervals": template.render(width=WIDTH, rows=[_drawn(metric) for metric in metrics])},
        title=f"Experiment {experiment['name']}",
        verdict=f"{VERDICTS[report['recommendation']]}: {report['text']}",
        conclusion=f"{units:,} of {report['planned_units']:,} planned units, on {_moment(report)} UTC. "
        + report["sample_ratio"]["text"],
        picture={"name": "intervals", "caption": caption} if metrics else None,
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


def change(metric: dict[str, Any]) -> tuple[str, str]:
    """Return a change and its interval, in percent of control's value if that has one."""
    relative, *values = _interval(metric)
    text = percent if relative else number
    value, *ends = (None if each is None else text(each, digits=3, sign=True) for each in values)
    return value or "–", "–" if None in ends else " to ".join(map(str, ends))


def _change(metric: dict[str, Any]) -> str:
    value, interval = change(metric)
    return (value if interval == "–" else f"{value} ({interval})").replace("-", "−")


def _interval(metric: dict[str, Any]) -> tuple[bool, float | None, float | None, float | None]:
    """Return whether the change is a share of control's value, the change, and its interval's ends."""
    relative = metric["relative_low"] is not None and metric["relative_high"] is not None
    names = ("relative", "relative_low", "relative_high") if relative else ("difference", "low", "high")
    value, low, high = (metric[name] for name in names)
    return relative, value, low, high


def _drawn(metric: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the drawing, on a scale of its own."""
    relative, value, low, high = _interval(metric)
    margin = metric["margin"] if metric["margin_relative"] == relative else None
    if margin is not None and metric["better"] == "higher":
        margin = -margin
    marks = {"zero": 0.0, "value": value, "low": low, "high": high, "margin": margin or None}
    known = [mark for mark in marks.values() if mark is not None]
    first, span = min(known), (max(known) - min(known)) or 1.0
    places = {
        name: None if mark is None else round(LEFT + (RIGHT - LEFT) * (mark - first) / span, 1)
        for name, mark in marks.items()
    }
    return {"title": f"{metric['arm']} on {metric['metric']}", "change": _change(metric), **places}


def _section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Section:
    return Section(title, tables=(Table(head, tuple(rows)),) if rows else ())


def _moment(what: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(what['time'], UTC):%Y-%m-%d %H:%M}"
