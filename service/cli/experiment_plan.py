"""`headroom experiment plan`: how many units an A/B test or an interleaving experiment needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from headroom.models.commands import options
from headroom.models.numbers import GIVEN, number, percent
from headroom.models.terminal import table

if TYPE_CHECKING:
    from headroom.service.cli.against_order import FirstEvaluation
    from headroom.service.cli.lists import Measured
    from headroom.service.experiments.plan import ExperimentPlan, PreferenceQuestion, Question, SampleSize

Against = Literal["original"]
Better = Literal["higher", "lower"]

Baseline = Annotated[
    float | None, typer.Option(help="A/B: value of the metric today: a share of units, or a mean.")
]
Sd = Annotated[
    float | None,
    typer.Option(help="A/B: standard deviation between units, if the baseline is a mean, not a share."),
]
Margin = Annotated[
    float | None,
    typer.Option(
        help="Loss that is still acceptable: 0.02 is 2 % of the baseline. With --interleave, of preference, "
        "which is -1 if all prefer control and 1 if all prefer the treatment."
    ),
]
Effect = Annotated[
    float | None,
    typer.Option(
        help="True change that you expect: -0.005 is a loss of 0.5 % of the baseline; with --interleave, "
        "a preference of -0.005.  [default: 0; with --against, what --data says]"
    ),
]
Power = Annotated[
    float, typer.Option(min=0.5, max=0.99, help="Probability of a conclusion if the effect is as given.")
]
Weights = Annotated[
    str | None, typer.Option(help="A/B: traffic weights of the arms, the control's first.  [default: 50,50]")
]
Traffic = Annotated[float, typer.Option(min=1e-4, max=1, help="Share of the units that takes part.")]
UnitsPerDay = Annotated[
    float | None, typer.Option(min=1, max=1e12, help="New units per day; adds how many days the test takes.")
]
Interleave = Annotated[
    bool, typer.Option("--interleave", help="Plan an interleaving experiment, with the A/B test beside it.")
]
Clicked = Annotated[
    float | None, typer.Option(help="Interleaving: share of the units that click some title, such as 0.3.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Interleaving: csv, tsv, jsonl or parquet of query,title. Both variants score it, to say how "
        "many lists differ."
    ),
]
AgainstOrder = Annotated[
    Against | None,
    typer.Option(
        help="Interleave a model with the order that you have, the variant `original`. --data is then judged "
        "(query,title,grade), and says how large a preference to expect."
    ),
]
Position = Annotated[
    str | None,
    typer.Option(help="--against: column of each title's rank in that order.  [default: the rows' order]"),
]
Order = Annotated[
    str | None, typer.Option(help="--against: file with that order, as `headroom evaluate --order` takes it.")
]
Mask = Annotated[str | None, typer.Option(help="The treatment's mask on --data, such as @pruned20.")]
Variant = Annotated[
    str | None, typer.Option(help="The treatment's variant on --data. Control is the config's default.")
]
Shown = Annotated[
    int | None, typer.Option(min=1, help="How many titles of --data's lists users see.  [default: all]")
]
Differing = Annotated[
    float | None,
    typer.Option(
        help="Interleaving: share of the lists that differ, as a report with shadow scores says it, instead "
        "of --data."
    ),
]


def command(
    context: typer.Context,
    baseline: Baseline = None,
    sd: Sd = None,
    margin: Margin = None,
    effect: Effect = None,
    better: Annotated[Better, typer.Option(help="A/B: which values of the metric are better.")] = "higher",
    power: Power = 0.8,
    weights: Weights = None,
    traffic: Traffic = 1.0,
    units_per_day: UnitsPerDay = None,
    interleave: Interleave = False,
    against: AgainstOrder = None,
    position: Position = None,
    order: Order = None,
    clicked: Clicked = None,
    data: Data = None,
    mask: Mask = None,
    variant: Variant = None,
    model: options.Model = None,
    config: options.Config = None,
    label_order: options.LabelOrder = None,
    shown: Shown = None,
    differing: Differing = None,
    as_json: options.AsJson = False,
) -> None:
    """Compute how many units and days an experiment needs.

    The numbers are for one look at the end, and for looking at any time. With --margin, the experiment asks
    whether an arm is worse by less than the margin (non-inferiority, the usual question about a pruned
    variant). Without it, the experiment asks whether there is a difference as large as --effect.

    Example: headroom experiment plan --interleave --margin 0.05 --clicked 0.3 --units-per-day 40000

    Example: headroom experiment plan --baseline 0.31 --margin 0.02 --units-per-day 40000 --traffic 0.2

    Example: headroom experiment plan --against original --data data/sample/judgments.csv --clicked 0.31
    """
    daily = None if units_per_day is None else units_per_day * traffic
    is_ab = not interleave and against is None
    _refuse_unused(
        context,
        is_ab=is_ab,
        has_order=against is not None,
        has_days=daily is not None,
        has_data=data is not None,
    )
    if is_ab:
        question = question_of(baseline, sd, margin, effect or 0.0, better, weights or "50,50")
        print(_ab_answer(question, power, daily, as_json=as_json))
        return
    from headroom.service.cli import lists

    network = options.Network(model, config, variant, mask, "auto", "auto", options.label_names(label_order))
    first = None
    if against is not None:
        check_preference(margin, effect, clicked, is_measured=effect is None)
        first = _first_evaluation(network, data, position, order, shown)
        measured = first.measured
        effect = first.preference.value if effect is None else effect
    else:
        check_preference(margin, effect or 0.0, clicked)
        measured = lists.measure(network, data, shown, differing)
    assert clicked is not None
    print(
        _interleaving_answer(
            measured, clicked, margin, effect or 0.0, power, daily, first=first, as_json=as_json
        )
    )


def _refuse_unused(
    context: typer.Context, *, is_ab: bool, has_order: bool, has_days: bool, has_data: bool
) -> None:
    """Raise BadParameter for an option that this kind of plan does not use.

    is_ab: of an A/B test, not of interleaving. has_order: it is against the order that the titles have.
    has_days: it is told how many units come in a day. has_data: it has judged pairs.
    """
    of_data = ("mask", "variant", "model", "config", "label_order", "shown")
    if not has_days:
        options.refuse_unused(context, "it needs --units-per-day", "traffic")
    if not has_order:
        options.refuse_unused(context, "it needs --against", "position", "order")
    if is_ab:
        of_interleaving = ("clicked", "data", "differing", *of_data)
        options.refuse_unused(context, "it needs --interleave", *of_interleaving)
        return
    reason = "it belongs to an A/B test; --interleave takes --clicked and a --margin of preference"
    options.refuse_unused(context, reason, "baseline", "sd", "weights", "better")
    if not has_data:
        options.refuse_unused(context, "it needs --data", *of_data)
    if has_order and has_data:
        options.refuse_unused(context, "--data says it", "differing")


def _first_evaluation(
    network: options.Network, data: Path | None, position: str | None, order: str | None, shown: int | None
) -> FirstEvaluation:
    """Evaluate a model against the order of judged pairs. Raises BadParameter if there are none.

    position, order: where their order is. shown: how many titles users see; None: all.
    """
    if data is None:
        raise typer.BadParameter("--against needs judged pairs: query,title,grade", param_hint="--data")
    from headroom.models.api.evaluation import order_columns
    from headroom.models.quality.labelled import Columns
    from headroom.service.cli.against_order import evaluate_first

    return evaluate_first(network, data, order_columns(Columns(), position, order, None), shown)


def _ab_answer(question: Question, power: float, daily: float | None, *, as_json: bool) -> str:
    from headroom.service.experiments.estimates import ALPHA
    from headroom.service.experiments.plan import make_plan

    needed = make_plan(question, power=power, units_per_day=daily)
    if not as_json:
        return plan_text(needed, question, power)
    document = {
        "schema": 1,
        "question": "difference" if question.margin is None else "non-inferiority",
        **dataclasses.asdict(question),
        "alpha": ALPHA,
        "power": power,
        "one_look": needed.one_look,
        "any_time": needed.any_time,
        "planned_units": needed.any_time.units,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _interleaving_answer(
    measured: Measured,
    clicked: float,
    margin: float | None,
    effect: float,
    power: float,
    daily: float | None,
    *,
    first: FirstEvaluation | None,
    as_json: bool,
) -> str:
    from headroom.service.experiments.estimates import ALPHA
    from headroom.service.experiments.plan import PreferenceQuestion, make_plan

    try:
        question = PreferenceQuestion(clicked, measured.lists.deciding, margin, effect)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    needed = make_plan(question, power=power, units_per_day=daily)
    ab = make_plan(question.ab_question(), power=power, units_per_day=daily)
    cautious = None if first is None else first.cautious_units(question, power, daily)
    if not as_json:
        text = interleaving_text(needed, ab, question, measured, power)
        return text if first is None else "\n".join([*first.lines(cautious), "", text])
    against = None if first is None else {**first.as_json(), "cautious": cautious}
    document = {
        "schema": 1,
        "question": "difference" if margin is None else "non-inferiority",
        "margin": margin,
        "effect": effect,
        "clicked": clicked,
        **dataclasses.asdict(measured.lists),
        "measured_on": measured.source,
        "against": against,
        "alpha": ALPHA,
        "power": power,
        "one_look": needed.one_look,
        "any_time": needed.any_time,
        "interleave_units": needed.any_time.units,
        "planned_units": needed.tested_units,
        "ab": {"one_look": ab.one_look, "any_time": ab.any_time},
        "ab_units": ab.any_time.units,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def check_preference(
    margin: float | None, effect: float | None, clicked: float | None, *, is_measured: bool = False
) -> None:
    """Raise BadParameter if the options of an interleaving experiment are wrong.

    is_measured: whether the effect comes from a first evaluation.
    """
    effect = effect or 0.0
    checks = (
        (clicked is not None, "--clicked", "give the share of the units that click some title, such as 0.3"),
        (clicked is None or 0 < clicked < 1, "--clicked", "must be above 0 and below 1"),
        (
            margin is None or 0 < margin <= 1,
            "--margin",
            "must be above 0 and at most 1, because it is one of preference, from -1 to 1",
        ),
        (-1 < effect < 1, "--effect", "must be above -1 and below 1, because it is a preference"),
        (
            is_measured or margin is not None or effect != 0,
            "--margin",
            "give a margin, or the --effect that the experiment should find",
        ),
    )
    _check(checks)


def _check(checks: Sequence[tuple[bool, str, str]]) -> None:
    """Raise BadParameter for the first check that fails.

    checks: whether the option is right, its name, and what it must be.
    """
    for is_right, option, reason in checks:
        if not is_right:
            raise typer.BadParameter(reason, param_hint=option)


def question_of(
    baseline: float | None,
    sd: float | None,
    margin: float | None,
    effect: float,
    better: Better,
    weights: str,
) -> Question:
    """Return the options as a question in the metric's own unit. Raises BadParameter if they contradict."""
    from headroom.service.experiments.plan import Question

    if baseline is None:
        raise typer.BadParameter(
            "give the metric's value today, or --interleave with --clicked", param_hint="--baseline"
        )
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
    _check(checks)
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


def plan_text(plan: ExperimentPlan, question: Question, power: float) -> str:
    """Return the plan as text for people."""
    from headroom.service.experiments.estimates import ALPHA

    def size(value: float) -> str:
        share = percent(value / question.baseline, digits=GIVEN)
        return f"{share} of control's {question.baseline:g} ({number(value)})"

    if question.margin is None:
        question_text = f"Is there a difference as large as {size(abs(question.effect))}?"
    else:
        question_text = f"Is an arm worse by less than {size(question.margin)}"
        question_text += (
            f", if it really changes by {size(question.effect)}?" if question.effect else ", if at all?"
        )
    ratio = " : ".join(f"{weight:g}" for weight in question.weights)
    heads = ["", "units", "" if plan.any_time.days is None else "days"]
    rows = [heads, _row("one look at the end", plan.one_look), _row("looking at any time", plan.any_time)]
    lines = [
        question_text,
        f"power {percent(power)}, α {ALPHA:g}, arms {ratio}, standard deviation {number(question.sd)}",
        "",
        table(rows, numbers_from=1),
        "",
        f"For the config: planned_units: {plan.any_time.units}",
    ]
    return "\n".join(lines)


def interleaving_text(
    plan: ExperimentPlan,
    ab: ExperimentPlan,
    question: PreferenceQuestion,
    measured: Measured,
    power: float,
) -> str:
    """Return the plan of an interleaving experiment, with the A/B test beside it, as text for people."""
    from headroom.service.experiments.estimates import ALPHA

    if question.margin is None:
        question_text = f"Do units prefer one arm by as much as {number(abs(question.effect))}?"
    else:
        question_text = f"Is the preference for the treatment above −{number(question.margin, digits=GIVEN)}"
        question_text += (
            f", if it really is {number(question.effect)}?" if question.effect else ", if it is 0?"
        )
    lists = measured.lists
    rows = [
        ["", "units", "" if plan.any_time.days is None else "days"],
        _row("interleaving, one look at the end", plan.one_look),
        _row("interleaving, looking at any time", plan.any_time),
        _row("A/B test, looking at any time", ab.any_time),
    ]
    limit = abs(question.effect) if question.margin is None else question.margin
    loss = percent(limit * question.share / question.clicked)
    lines = [
        question_text,
        f"power {percent(power)}, α {ALPHA:g}; {percent(question.clicked)} of the units click",
        f"{percent(lists.differing)} of the lists differ, and {percent(lists.deciding)} of the clicks fall "
        "on a title of one arm",
        f"({measured.source})",
        "",
        table(rows, numbers_from=1),
        "",
        f"The A/B test is sized for a loss of {loss} of the units that click, the most that a preference of",
        f"−{number(limit)} can cost. The real cost is smaller, so it needs even more units.",
        "Interleaving shows which titles are preferred; revenue, latency and clicks per page take A/B.",
        "",
        f"For the config: planned_units: {plan.tested_units} (units that click a title of one arm)",
    ]
    return "\n".join(lines)


def _row(name: str, need: SampleSize) -> list[str]:
    return [f"  {name}", f"{need.units:,}", "" if need.days is None else f"{need.days:,}"]
