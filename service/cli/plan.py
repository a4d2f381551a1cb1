"""`headroom experiment plan` computes how many units and days an A/B test needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from models.commands.options import AsJson
from models.commands.terminal import table
from models.numbers import number, percent

if TYPE_CHECKING:
    from service.experiments.plan import Need, Plan, Question

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


def command(
    baseline: Baseline,
    sd: Sd = None,
    margin: Margin = None,
    effect: Effect = 0.0,
    better: Annotated[Better, typer.Option(help="Which values of the metric are better.")] = "higher",
    power: Power = 0.8,
    weights: Weights = "50,50",
    traffic: Traffic = 1.0,
    units_per_day: UnitsPerDay = None,
    as_json: AsJson = False,
) -> None:
    """Compute how many units and days an A/B test needs.

    The numbers are for one look at the end, and for looking at any time. With --margin, the test asks
    whether an arm is worse by less than the margin (non-inferiority, the usual question about a pruned
    variant). Without it, the test asks whether there is a difference as large as --effect.

    Example: headroom experiment plan --baseline 0.31 --margin 0.02 --units-per-day 40000 --traffic 0.2
    """
    import dataclasses

    import orjson

    from service.experiments.analysis import ALPHA
    from service.experiments.plan import make_plan

    question = ask(baseline, sd, margin, effect, better, weights)
    daily = None if units_per_day is None else units_per_day * traffic
    plan = make_plan(question, alpha=ALPHA, power=power, units_per_day=daily)
    if as_json:
        document = {
            "schema": 1,
            "question": "difference" if margin is None else "non-inferiority",
            **dataclasses.asdict(question),
            "alpha": ALPHA,
            "power": power,
            **dataclasses.asdict(plan),
            "planned_units": plan.any_time.units,
        }
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(text(plan, question, alpha=ALPHA, power=power))


def ask(
    baseline: float, sd: float | None, margin: float | None, effect: float, better: Better, weights: str
) -> Question:
    """Return the options as a question in the metric's own unit. Raises BadParameter if they contradict."""
    from service.experiments.plan import Question

    changed = baseline * (1 + effect)
    is_share = sd is None
    for is_right, option, reason in (
        (
            0 < baseline < (1 if is_share else math.inf),
            "--baseline",
            "must be above 0; without --sd, below 1",
        ),
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
    ):
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


def text(plan: Plan, question: Question, *, alpha: float, power: float) -> str:
    """Return the plan as text for people."""

    def size(value: float) -> str:
        share = percent(value / question.baseline, digits=3)
        return f"{share} of control's {question.baseline:g} ({number(value)})"

    def row(name: str, need: Need) -> list[str]:
        return [f"  {name}", f"{need.units:,}", "" if need.days is None else f"{need.days:,}"]

    if question.margin is None:
        asked = f"Is there a difference as large as {size(abs(question.effect))}?"
    else:
        asked = f"Is an arm worse by less than {size(question.margin)}"
        asked += f", if it really changes by {size(question.effect)}?" if question.effect else ", if at all?"
    ratio = " : ".join(f"{weight:g}" for weight in question.weights)
    heads = ["", "units", "" if plan.any_time.days is None else "days"]
    rows = [heads, row("one look at the end", plan.one_look), row("looking at any time", plan.any_time)]
    lines = [
        asked,
        f"power {percent(power)}, α {alpha:g}, arms {ratio}, standard deviation {number(question.sd)}",
        "",
        table(rows, numbers_from=1),
        "",
        f"For the config: planned_units: {plan.any_time.units}",
    ]
    return "\n".join(lines)
