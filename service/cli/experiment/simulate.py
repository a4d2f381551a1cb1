"""`headroom experiment simulate` runs A/B tests of two masks on labelled data with simulated users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.experiment.plan import parse_weights
from service.cli.mask_option import FORMS, parse_mask
from service.cli.options import AsJson, Data, Device, Dtype, Model
from service.cli.terminal import progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from models import Classifier, HeadMask
    from models.quality.labelled import LabelledPair
    from service.experiments.planning.replay import Replay, ShadowSummary, SimulatedUsers
    from service.experiments.planning.simulation import Design

CHUNK = 2048
"""Number of pairs scored between two updates of the progress bar."""

MAX_UNITS = 2_000_000
"""Users of one simulated experiment; more would take minutes for each experiment."""


Mask = Annotated[str, typer.Option(help=f"Mask of the arm: {FORMS}.")]
ControlMask = Annotated[str, typer.Option(help="Mask of the control, in the same forms.")]
ClickModel = Annotated[Literal["position", "cascade"], typer.Option(help="How users read a ranking.")]
Measure = Annotated[
    Literal["clicked", "clicks", "reciprocal_rank"],
    typer.Option(help="Metric of one user: whether they clicked, how often, or 1 / rank of the first click."),
]
Margin = Annotated[
    float, typer.Option(help="Loss that is still acceptable: 0.02 is 2 % of the control's value.")
]
Units = Annotated[
    int | None, typer.Option(min=100, help="Users of one experiment.  [default: enough for 80 % power]")
]
Experiments = Annotated[int, typer.Option(min=10, max=100_000, help="Number of A/B tests, and of A/A tests.")]
Every = Annotated[int, typer.Option(min=10, help="Number of users between two looks.")]
Alpha = Annotated[float, typer.Option(min=1e-4, max=0.2, help="Error rate of the confidence sequence.")]
Weights = Annotated[str, typer.Option(help="Traffic weights of the control and the arm.")]
Past = Annotated[bool, typer.Option("--past", help="Use the users' past behaviour as a covariate (CUPED).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the simulated users.")]


def command(
    data: Data,
    mask: Mask,
    control_mask: ControlMask = "none",
    model: Model = None,
    click_model: ClickModel = "cascade",
    measure: Measure = "reciprocal_rank",
    margin: Margin = 0.02,
    units: Units = None,
    experiments: Experiments = 500,
    every: Every = 100,
    alpha: Alpha = 0.05,
    weights: Weights = "50,50",
    past: Past = False,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: AsJson = False,
) -> None:
    """Simulate A/B tests of a mask: what they conclude, how often, and how often an A/A test is wrong.

    Both masks rank each query's titles; simulated users ask the queries and click by the titles' grades.

    Example: headroom experiment simulate --data data/sample/test.jsonl.gz --mask @pruned60 --margin 0.02
    """
    import orjson

    from service.experiments.planning.replay import LabelledPairs, SimulatedUsers, compare_scores, replay

    arms = parse_weights(weights)
    if len(arms.weights) != 2:
        raise typer.BadParameter("give two weights, the control's first: 50,50", param_hint="--weights")
    if not 0 < margin < 1:
        raise typer.BadParameter("must be a share above 0 and below 1", param_hint="--margin")
    pairs, levels, scores = score(data, model, (control_mask, mask), device, dtype)
    labelled = LabelledPairs.of([pair.query for pair in pairs], [pair.grade for pair in pairs], levels)
    users = SimulatedUsers.of(labelled, scores, model=click_model, measure=measure, past=past)
    design = plan(users, margin=margin, units=units, every=every, alpha=alpha, share=arms.share)
    with progress("{task.completed} of {task.total} experiments", 2 * experiments) as advance:
        result = replay(users, design, experiments=experiments, seed=seed, progress=advance)
    paired = compare_scores(labelled, scores)
    if as_json:
        document = as_document(result, paired, users, click_model)
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
    else:
        print(text(result, paired, users, data, mask, click_model))


def score(
    data: Path, model: str | None, masks: tuple[str, str], device: str, dtype: str
) -> tuple[list[LabelledPair], int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the pairs, the number of grades, and the scores under both masks."""
    from models import Classifier
    from models.quality.labelled import read_labelled

    clf = Classifier.load(model, device, dtype)
    parsed = [parse_mask(mask, clf.config, clf.stored_masks) for mask in masks]
    levels = len(clf.grades) or 5
    pairs = read_labelled(data, grades=levels)
    with progress("{task.completed} of {task.total} pairs scored", 2 * len(pairs)) as advance:
        control = _scores(clf, pairs, parsed[0], advance)
        arm = _scores(clf, pairs, parsed[1], lambda done: advance(len(pairs) + done))
    return pairs, levels, (control, arm)


def _scores(
    clf: Classifier, pairs: list[LabelledPair], mask: HeadMask, advance: Callable[[int], None]
) -> NDArray[np.float64]:
    import numpy as np

    parts = []
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        parts.append(clf.relevance(clf.score([(pair.query, pair.title) for pair in chunk], mask).score))
        advance(start + len(chunk))
    return np.concatenate(parts).astype(np.float64)


def plan(
    users: SimulatedUsers, *, margin: float, units: int | None, every: int, alpha: float, share: float
) -> Design:
    """Return the design of the experiments.

    units: users of one experiment; None takes the number that has 80 % power to show that the arm is good
    enough. An arm about as bad as the margin, or worse, is planned as one without effect, because no number
    of users would show that it is good enough.
    """
    from service.experiments.planning.power import Question, sequential_units
    from service.experiments.planning.simulation import Design

    control, arm = users.means
    if units is None:
        sd, correlation = users.spread
        allowed = margin * control
        # Close to the margin the number of units grows without bound.
        effect = arm - control if arm - control > -0.8 * allowed else 0.0
        question = Question(control, sd, margin=allowed, effect=effect, share=share, correlation=correlation)
        units = sequential_units(question, alpha=alpha, power=0.8, every=every)
        if units > MAX_UNITS:
            raise RuntimeError(
                f"80 % power takes {units:,} users; give a larger --margin, or set --units to see its power"
            )
    units = max(every, units - units % every)
    return Design(units, every=every, share=share, alpha=alpha, margin=margin, adjusted=users.past)


def as_document(
    result: Replay, paired: ShadowSummary, users: SimulatedUsers, click_model: str
) -> dict[str, Any]:
    """Return the result as plain values."""
    import dataclasses

    last = result.example.last
    control, arm = result.control, result.arm
    return {
        "schema": 1,
        "click_model": click_model,
        "measure": users.measure,
        "queries": users.queries,
        "truth": {"control": control, "arm": arm, "relative": arm / control - 1 if control else None},
        "sd": result.sd,
        "correlation_with_past": result.correlation,
        "design": dataclasses.asdict(result.design),
        "planned_power": result.planned_power,
        "experiments": dataclasses.asdict(result.effect),
        "a_a": dataclasses.asdict(result.no_effect),
        "first_experiment": {
            "good_at": int(result.example.good[0]) if result.example.good[0] > 0 else None,
            "bad_at": int(result.example.bad[0]) if result.example.bad[0] > 0 else None,
            "relative": float(last.relative[0]),
            "relative_low": float(last.relative_low[0]),
            "relative_high": float(last.relative_high[0]),
        },
        "shadow": dataclasses.asdict(paired),
    }


def text(
    result: Replay, paired: ShadowSummary, users: SimulatedUsers, data: Path, mask: str, click_model: str
) -> str:
    """Return the result as text for people."""
    from service.experiments.analysis.verdicts import judge

    design, last = result.design, result.example.last
    relative = result.arm / result.control - 1
    first = judge(
        f"{mask} on {users.measure}",
        float(last.relative_low[0]),
        float(last.relative_high[0]),
        margin=design.margin,
        relative=True,
    )
    ended = result.example.good[0] if result.example.good[0] > 0 else result.example.bad[0]
    when = f" First said after {ended:,} users." if ended > 0 else ""
    lines = [
        f"{users.queries:,} queries of {data}, users of the {click_model} model, {users.measure}",
        f"true values: control {result.control:.4f}, {mask} {result.arm:.4f} ({100 * relative:+.2f} %)",
        f"one experiment: {design.units:,} users, a look every {design.every}, margin {design.margin:.2%}",
        "",
        f"The first one, at its end: {first.text}{when}",
        "",
        f"Of {result.effect.experiments:,} such experiments:",
        f"  {result.effect.good:7.1%}  say good enough" + _power(result),
        f"  {result.effect.bad:7.1%}  say too bad",
        f"  {result.effect.undecided:7.1%}  end undecided",
        f"  {result.effect.missed:7.1%}  had an interval, at any look, without the truth in it "
        f"(at most {design.alpha:.0%})",
    ]
    if result.effect.median_units is not None:
        lines.append(f"  half of those that conclude do so by {result.effect.median_units:,} users")
    lines += [
        f"Of {result.no_effect.experiments:,} without any effect (A/A):",
        f"  {result.no_effect.different:7.1%}  see a difference at any look (at most {design.alpha:.0%})",
        f"  {result.no_effect.mismatches:7}  raise the sample-ratio alarm",
        "",
        f"Without any user (shadow, all queries): scores move by {paired.mean_delta:+.4f} on average, 99 % "
        f"by less than {paired.abs_delta_p99:.3f}{_optional(paired)}.",
    ]
    return "\n".join(lines)


def _power(result: Replay) -> str:
    return "" if result.planned_power is None else f" (the power calculation says {result.planned_power:.1%})"


def _optional(paired: ShadowSummary) -> str:
    parts = (
        ("rank correlation", paired.rank_correlation, ".3f"),
        ("top-10 overlap", paired.top10_overlap, ".3f"),
        ("NDCG@10 loss", paired.ndcg_loss, "+.4f"),
    )
    return "".join(f"; {name} {value:{form}}" for name, value, form in parts if value is not None)
