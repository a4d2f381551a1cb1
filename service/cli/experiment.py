"""`headroom experiment`: plan an A/B test; start, report, ramp, stop, ship and roll it back, over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from headroom.models.commands.terminal import table
from headroom.models.numbers import number, percent

if TYPE_CHECKING:
    from headroom.service.experiments.plan import ExperimentPlan, Question, SampleSize

TIMEOUT_S = 90
"""Time limit of one request; a report over millions of units is slow."""

LATEST = 10
"""How many entries of the log are shown, newest last."""

Name = Annotated[str, typer.Argument(help="Name of the experiment.")]
Url = Annotated[str, typer.Option(envvar="HEADROOM_URL", help="Address of the service.")]
Key = Annotated[
    str | None, typer.Option(envvar="HEADROOM_API_KEY", help="API key; changes need one with the admin role.")
]
Reason = Annotated[str, typer.Option(help="Reason to write into the experiment's log.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
DEFAULT_URL = "http://127.0.0.1:8000"

Better = Literal["higher", "lower"]

Baseline = Annotated[float, typer.Option(help="Value of the metric today: a share of units, or a mean.")]
Sd = Annotated[
    float | None,
    typer.Option(help="Standard deviation between units, if the baseline is a mean, not a share."),
]
Margin = Annotated[
    float | None, typer.Option(help="Loss that is still acceptable: 0.02 is 2 % of the baseline.")
]
Effect = Annotated[
    float, typer.Option(help="True change that you expect: -0.005 is a loss of 0.5 % of the baseline.")
]
Power = Annotated[
    float, typer.Option(min=0.5, max=0.99, help="Probability of a conclusion if the effect is as given.")
]
Weights = Annotated[str, typer.Option(help="Traffic weights of the arms, the control's first.")]
Traffic = Annotated[float, typer.Option(min=1e-4, max=1, help="Share of the units that takes part.")]
UnitsPerDay = Annotated[
    float | None, typer.Option(min=1, max=1e12, help="New units per day; adds how many days the test takes.")
]

app = typer.Typer(
    help="Plan an A/B test of variants; start, report, ramp, stop, ship and roll it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def plan(
    baseline: Baseline,
    sd: Sd = None,
    margin: Margin = None,
    effect: Effect = 0.0,
    better: Annotated[Better, typer.Option(help="Which values of the metric are better.")] = "higher",
    power: Power = 0.8,
    weights: Weights = "50,50",
    traffic: Traffic = 1.0,
    units_per_day: UnitsPerDay = None,
    as_json: Json = False,
) -> None:
    """Compute how many units and days an A/B test needs.

    The numbers are for one look at the end, and for looking at any time. With --margin, the test asks
    whether an arm is worse by less than the margin (non-inferiority, the usual question about a pruned
    variant). Without it, the test asks whether there is a difference as large as --effect.

    Example: headroom experiment plan --baseline 0.31 --margin 0.02 --units-per-day 40000 --traffic 0.2
    """
    import dataclasses

    import orjson

    from headroom.service.experiments.analysis import ALPHA
    from headroom.service.experiments.plan import make_plan

    question = question_of(baseline, sd, margin, effect, better, weights)
    daily = None if units_per_day is None else units_per_day * traffic
    needed = make_plan(question, alpha=ALPHA, power=power, units_per_day=daily)
    if as_json:
        document = {
            "schema": 1,
            "question": "difference" if margin is None else "non-inferiority",
            **dataclasses.asdict(question),
            "alpha": ALPHA,
            "power": power,
            **dataclasses.asdict(needed),
            "planned_units": needed.any_time.units,
        }
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(plan_text(needed, question, alpha=ALPHA, power=power))


@app.command()
def start(
    file: Annotated[
        Path, typer.Argument(help="YAML or JSON file with the experiment, as the config would declare it.")
    ],
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Start an experiment now, on all replicas, without the config. It lasts over restarts.

    Example: headroom experiment start prune20.yaml
    """
    from headroom.service.config.file import load_experiment

    experiment = load_experiment(file)
    show(call(url, key, body=experiment.model_dump(mode="json", exclude_unset=True)), as_json)


@app.command()
def report(
    name: Name,
    url: Url = DEFAULT_URL,
    key: Key = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write, which needs no other, to share the results.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print an experiment's results so far. You may look as often as you like: the intervals stay valid.

    Example: headroom experiment report prune20 --out prune20.html
    """
    experiment = call(url, key, name)
    if out is not None:
        from headroom.models.files import write_whole
        from headroom.service.experiments import report_page

        write_whole(out, report_page.html(experiment).encode())
    show(experiment, as_json, analysed=True)


@app.command()
def ramp(
    name: Name,
    traffic: Annotated[float, typer.Option(min=0, max=1, help="Share of the units to expose.")],
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Expose more units, or fewer. No unit moves from one arm to another.

    Example: headroom experiment ramp prune20 --traffic 0.25 --reason "p99 is fine"
    """
    show(call(url, key, name, "ramp", {"traffic": traffic, "reason": reason}), as_json)


@app.command()
def stop(
    name: Name, reason: Reason = "", url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False
) -> None:
    """End an experiment and give every unit the default variant again.

    Example: headroom experiment stop prune20 --reason "sample ratio is off"
    """
    show(call(url, key, name, "stop", {"reason": reason}), as_json)


@app.command()
def ship(
    name: Name,
    arm: Annotated[str, typer.Argument(help="Arm whose variant every unit gets.")],
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End an experiment and give every unit this arm's variant.

    Example: headroom experiment ship prune20 pruned --reason "good enough on clicks"
    """
    show(call(url, key, name, "ship", {"arm": arm, "reason": reason}), as_json)


@app.command()
def rollback(
    name: Name, reason: Reason = "", url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False
) -> None:
    """Take a ship back: every unit gets the default variant again.

    Example: headroom experiment rollback prune20 --reason "more complaints"
    """
    show(call(url, key, name, "rollback", {"reason": reason}), as_json)


def call(
    url: str,
    key: str | None,
    name: str | None = None,
    action: str | None = None,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """GET /v1/experiments/{name}, or POST a body: to an action below it, or without a name to the whole.

    Raises RuntimeError.
    """
    import httpx2

    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter("must be an address such as http://127.0.0.1:8000", param_hint="--url")
    address = f"{url.rstrip('/')}/v1/experiments"
    if name is not None:
        address += f"/{quote(name, safe='')}"
    if action is not None:
        address += f"/{action}"
    try:
        answer = httpx2.request(
            "GET" if body is None else "POST",
            address,
            json=body,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=TIMEOUT_S,
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error).rpartition("] ")[-1] or type(error).__name__  # without "[Errno 111]"
        raise RuntimeError(
            f"no answer from {url}: {reason}; does it run there? --url names another"
        ) from None
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        raise RuntimeError("the service wants an API key: give it by --key, or in HEADROOM_API_KEY")
    try:
        document = answer.json()
        if answer.is_success:
            return dict(document)
        message = str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):  # another program answered
        message = f"{address} answered {answer.status_code} {answer.reason_phrase}"
    raise RuntimeError(message)


def show(experiment: dict[str, Any], as_json: bool, *, analysed: bool = False) -> None:
    """Print the answer as JSON, or as text for people."""
    if as_json:
        print(json.dumps(experiment, indent=2, ensure_ascii=False))
    else:
        print(describe(experiment, analysed=analysed))


def describe(experiment: dict[str, Any], *, analysed: bool) -> str:
    """Return an answer of /v1/experiments/{name} as text.

    analysed: whether the request asked for the analysis.
    """
    from headroom.service.experiments.report_page import headline

    parts = [_heading(experiment)]
    report = experiment["report"]
    if report is not None:
        parts.append(f"{headline(experiment).upper()}: {report['text']}")
        parts.append(_exposures(report))
        parts.append(_metrics(report))
        shadows = [arm["shadow"]["text"] for arm in report["arms"] if arm["shadow"]]
        parts.append(_list("Scored under both arms (shadow):", shadows))
    elif analysed:
        parts.append("No analysis at present: the service cannot reach its database.")
    parts.append(_list("Log:", map(_entry, experiment["history"][-LATEST:])))
    return "\n\n".join(filter(None, parts))


def _list(title: str, items: Iterable[str]) -> str:
    """Return a title and a line for each item; "" without items."""
    lines = [f"  {item}" for item in items]
    return "\n".join([title, *lines]) if lines else ""


def _heading(experiment: dict[str, Any]) -> str:
    status = [experiment["status"], f"traffic {experiment['traffic']:.3g}"]
    if experiment.get("paused"):
        status.append(experiment["paused"])
    if experiment["rolled_back"]:
        status.append(f"rolled back: {', '.join(experiment['rolled_back'])}")
    if experiment["shipped"]:
        status.append(f"everybody gets {experiment['shipped']}")
    return f"{experiment['name']}: {', '.join(status)}"


def _exposures(report: dict[str, Any]) -> str:
    counts = ", ".join(f"{arm} {count:,}" for arm, count in report["exposures"].items())
    ratio = report["sample_ratio"]
    if not ratio["units"]:
        return f"Exposed units: {counts or 'none'}. Sample ratio: not checked. {ratio['text']}"
    return f"Exposed units: {counts}. Sample ratio: p = {ratio['sequential_p']:.3g} over all looks."


def _metrics(report: dict[str, Any]) -> str:
    from headroom.service.experiments.report_page import change_text

    level = f"{100 * (1 - report['alpha']):g} % at any time"
    rows = [["metric", "arm", "control", "value", "change", level, "verdict"]]
    for arm in report["arms"]:
        for metric in arm["metrics"]:
            values = (_number(metric[name]) for name in ("control_value", "value"))
            verdict = metric["decision"].replace("_", " ")
            rows.append([metric["metric"], metric["arm"], *values, *change_text(metric), verdict])
    return table(rows) if len(rows) > 1 else ""


def _entry(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    what = [str(entry[key]) for key in ("kind", "arm") if entry.get(key)]
    if entry.get("traffic") is not None:
        what.append(f"{entry['traffic']:.3g}")
    why = ", ".join(str(entry[key]) for key in ("reason", "detail") if entry.get(key))
    line = f"{moment}  {' '.join(what)} by {entry['actor']}"
    return f"{line}: {why}" if why else line


def _number(value: float | None) -> str:
    return "–" if value is None else number(value, digits=4)


def question_of(
    baseline: float, sd: float | None, margin: float | None, effect: float, better: Better, weights: str
) -> Question:
    """Return the options as a question in the metric's own unit. Raises BadParameter if they contradict."""
    from headroom.service.experiments.plan import Question

    changed = baseline * (1 + effect)
    is_share = sd is None
    limit = 1 if is_share else math.inf
    checks = (
        (0 < baseline < limit, "--baseline", "must be above 0; without --sd, below 1"),
        (sd is None or 0 < sd < math.inf, "--sd", "must be above 0"),
        (
            margin is None or 0 < margin < 1,
            "--margin",
            "must be above 0 and below 1, because it is a share of the baseline: 0.02 is 2 %",
        ),
        (
            math.isfinite(effect) and (margin is not None or effect != 0),
            "--margin",
            "give a margin, or the --effect that the test should find",
        ),
        (
            not is_share or 0 < changed < 1,
            "--effect",
            f"makes a share of {changed:g} of {baseline:g}; it must stay between 0 and 1",
        ),
    )
    for is_right, option, reason in checks:
        if not is_right:
            raise typer.BadParameter(reason, param_hint=option)
    try:
        return Question(
            baseline=baseline,
            sd=sd or math.sqrt(baseline * (1 - baseline)),
            margin=None if margin is None else margin * baseline,
            effect=effect * baseline,
            weights=tuple(float(weight) for weight in weights.split(",")),
            sign=1 if better == "higher" else -1,
            arm_sd=math.sqrt(changed * (1 - changed)) if is_share else None,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def plan_text(plan: ExperimentPlan, question: Question, *, alpha: float, power: float) -> str:
    """Return the plan as text for people."""

    def size(value: float) -> str:
        share = percent(value / question.baseline, digits=3)
        return f"{share} of control's {question.baseline:g} ({number(value)})"

    def row(name: str, need: SampleSize) -> list[str]:
        return [f"  {name}", f"{need.units:,}", "" if need.days is None else f"{need.days:,}"]

    if question.margin is None:
        question_text = f"Is there a difference as large as {size(abs(question.effect))}?"
    else:
        question_text = f"Is an arm worse by less than {size(question.margin)}"
        question_text += (
            f", if it really changes by {size(question.effect)}?" if question.effect else ", if at all?"
        )
    ratio = " : ".join(f"{weight:g}" for weight in question.weights)
    heads = ["", "units", "" if plan.any_time.days is None else "days"]
    rows = [heads, row("one look at the end", plan.one_look), row("looking at any time", plan.any_time)]
    lines = [
        question_text,
        f"power {percent(power)}, α {alpha:g}, arms {ratio}, standard deviation {number(question.sd)}",
        "",
        table(rows, numbers_from=1),
        "",
        f"For the config: planned_units: {plan.any_time.units}",
    ]
    return "\n".join(lines)
