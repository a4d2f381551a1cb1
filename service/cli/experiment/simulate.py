"""`headroom experiment simulate`: an A/B test of two masks on labelled data, with users who click."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.experiment.plan import parse_weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from models import Classifier, HeadMask
    from models.quality.labelled import LabelledPair
    from service.experiments.planning.replay import Replay, ShadowSummary, SimulatedUsers
    from service.experiments.planning.simulation import Design

CHUNK = 2048
"""Pairs between two reports of progress."""

MOST_UNITS = 2_000_000
"""Of one simulated experiment: more would take minutes each."""


def command(
    data: Annotated[
        Path, typer.Option(help="Labelled pairs: csv, tsv, jsonl or parquet of query,title,grade.")
    ],
    mask: Annotated[str, typer.Option(help="The arm's head mask, such as 6-11.* or @name.")],
    control_mask: Annotated[str, typer.Option(help="Control's head mask.")] = "none",
    model: Annotated[str | None, typer.Option(help="Checkpoint directory or hub id.")] = None,
    click_model: Annotated[
        Literal["position", "cascade"], typer.Option(help="How users go through a ranking.")
    ] = "cascade",
    measure: Annotated[
        Literal["clicked", "clicks", "reciprocal_rank"],
        typer.Option(help="Of a user: any click, their number, or 1 over the first one's place."),
    ] = "reciprocal_rank",
    margin: Annotated[
        float, typer.Option(help="How much worse is good enough: 0.02 is 2 % of control's value.")
    ] = 0.02,
    units: Annotated[
        int | None, typer.Option(min=100, help="Users of one experiment.  [default: for 80 % power]")
    ] = None,
    experiments: Annotated[int, typer.Option(min=10, max=100_000, help="Simulated, and as many A/A.")] = 500,
    every: Annotated[int, typer.Option(min=10, help="Users between two looks.")] = 100,
    alpha: Annotated[float, typer.Option(min=1e-4, max=0.2, help="Of the confidence sequence.")] = 0.05,
    weights: Annotated[str, typer.Option(help="Of control and the arm.")] = "50,50",
    past: Annotated[
        bool, typer.Option("--past", help="Use what users did before as a covariate (CUPED).")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the users.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """What an A/B test of a mask would conclude, how often, and how often an A/A test would be wrong.

    Both masks rank each query's titles; simulated users ask the queries and click by the titles' grades.

    Example: headroom experiment simulate --data data/sample/test.jsonl.gz --mask @pruned60 --margin 0.02
    """
    import orjson

    from service.experiments.planning.replay import LabelledPairs, SimulatedUsers, compare_scores, replay

    arms = parse_weights(weights)
    if len(arms.weights) != 2:
        raise typer.BadParameter("control and one arm, such as 50,50", param_hint="--weights")
    if not 0 < margin < 1:
        raise typer.BadParameter("a share of control's value, above 0 and below 1", param_hint="--margin")
    pairs, levels, scores = score(data, model, (control_mask, mask), device, dtype)
    labelled = LabelledPairs.of([pair.query for pair in pairs], [pair.grade for pair in pairs], levels)
    users = SimulatedUsers.of(labelled, scores, model=click_model, measure=measure, past=past)
    design = plan(users, margin=margin, units=units, every=every, alpha=alpha, share=arms.share)
    total = 2 * experiments
    found = replay(
        users,
        design,
        experiments=experiments,
        seed=seed,
        progress=lambda done: _progress(f"{done} of {total} experiments", last=done == total),
    )
    paired = compare_scores(labelled, scores)
    if as_json:
        document = as_document(found, paired, users, click_model)
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
    else:
        print(text(found, paired, users, data, mask, click_model))


def score(
    data: Path, model: str | None, masks: tuple[str, str], device: str, dtype: str
) -> tuple[list[LabelledPair], int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The pairs, how many grades there are, and the scores under both masks."""
    from models import Classifier, HeadMask
    from models.quality.labelled import read_labelled

    clf = Classifier.load(model, device, dtype)
    parsed = [
        HeadMask.parse(spec, layers=clf.num_layers, heads=clf.num_heads, stored=clf.stored_masks)
        for spec in masks
    ]
    levels = len(clf.grades) or 5
    pairs = read_labelled(data, grades=levels)
    return pairs, levels, (_scores(clf, pairs, parsed[0], 0), _scores(clf, pairs, parsed[1], 1))


def _scores(clf: Classifier, pairs: list[LabelledPair], mask: HeadMask, number: int) -> NDArray[np.float64]:
    import numpy as np

    parts = []
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        parts.append(clf.score([(pair.query, pair.title) for pair in chunk], mask).score)
        if len(pairs) > CHUNK:
            done = number * len(pairs) + min(start + CHUNK, len(pairs))
            _progress(f"{done} of {2 * len(pairs)} pairs scored", last=done == 2 * len(pairs))
    return np.concatenate(parts).astype(np.float64)


def plan(
    users: SimulatedUsers, *, margin: float, units: int | None, every: int, alpha: float, share: float
) -> Design:
    """The design; without `units` those that give 80 % power to show that the arm is good enough.

    Where the arm is worse than the margin, nothing could: then those for an arm without effect.
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
        if units > MOST_UNITS:
            raise RuntimeError(
                f"80 % power takes {units:,} users; give a larger --margin, or --units and see what it has"
            )
    units = max(every, units - units % every)
    return Design(units, every=every, share=share, alpha=alpha, margin=margin, adjusted=users.past)


def as_document(
    found: Replay, paired: ShadowSummary, users: SimulatedUsers, click_model: str
) -> dict[str, Any]:
    """The result as plain values."""
    import dataclasses

    last = found.example.last
    control, arm = found.control, found.arm
    return {
        "schema": 1,
        "click_model": click_model,
        "measure": users.measure,
        "queries": users.queries,
        "truth": {"control": control, "arm": arm, "relative": arm / control - 1 if control else None},
        "sd": found.sd,
        "correlation_with_past": found.correlation,
        "design": dataclasses.asdict(found.design),
        "planned_power": found.planned_power,
        "experiments": dataclasses.asdict(found.effect),
        "a_a": dataclasses.asdict(found.no_effect),
        "first_experiment": {
            "good_at": int(found.example.good[0]) if found.example.good[0] > 0 else None,
            "bad_at": int(found.example.bad[0]) if found.example.bad[0] > 0 else None,
            "relative": float(last.relative[0]),
            "relative_low": float(last.relative_low[0]),
            "relative_high": float(last.relative_high[0]),
        },
        "shadow": dataclasses.asdict(paired),
    }


def text(
    found: Replay, paired: ShadowSummary, users: SimulatedUsers, data: Path, mask: str, click_model: str
) -> str:
    """The result for people."""
    from service.experiments.analysis.verdicts import judge

    design, last = found.design, found.example.last
    relative = found.arm / found.control - 1
    first = judge(
        f"{mask} on {users.measure}",
        float(last.relative_low[0]),
        float(last.relative_high[0]),
        margin=design.margin,
        relative=True,
    )
    ended = found.example.good[0] if found.example.good[0] > 0 else found.example.bad[0]
    when = f" First said after {ended:,} users." if ended > 0 else ""
    lines = [
        f"{users.queries:,} queries of {data}, users of the {click_model} model, {users.measure}",
        f"the truth: control {found.control:.4f}, {mask} {found.arm:.4f} ({100 * relative:+.2f} %)",
        f"one experiment: {design.units:,} users, a look every {design.every}, margin {design.margin:.2%}",
        "",
        f"The first one, at its end: {first.text}{when}",
        "",
        f"Of {found.effect.experiments:,} such experiments:",
        f"  {found.effect.good:7.1%}  say good enough" + _power(found),
        f"  {found.effect.bad:7.1%}  say too bad",
        f"  {found.effect.undecided:7.1%}  end undecided",
        f"  {found.effect.missed:7.1%}  had an interval, at any look, without the truth in it "
        f"(at most {design.alpha:.0%})",
    ]
    if found.effect.median_units is not None:
        lines.append(f"  half of those that conclude do so by {found.effect.median_units:,} users")
    lines += [
        f"Of {found.no_effect.experiments:,} without any effect (A/A):",
        f"  {found.no_effect.different:7.1%}  see a difference at any look (at most {design.alpha:.0%})",
        f"  {found.no_effect.mismatches:7}  raise the sample-ratio alarm",
        "",
        f"Without any user (shadow, all queries): scores move by {paired.mean_delta:+.4f} on average, 99 % "
        f"by less than {paired.abs_delta_p99:.3f}{_optional(paired)}.",
    ]
    return "\n".join(lines)


def _power(found: Replay) -> str:
    return "" if found.planned_power is None else f" (the power calculation says {found.planned_power:.1%})"


def _optional(paired: ShadowSummary) -> str:
    parts = (
        ("rank correlation", paired.rank_correlation, ".3f"),
        ("top-10 overlap", paired.top10_overlap, ".3f"),
        ("NDCG@10 loss", paired.ndcg_loss, "+.4f"),
    )
    return "".join(f"; {name} {value:{form}}" for name, value, form in parts if value is not None)


def _progress(line: str, *, last: bool) -> None:
    print(f"\r{line}", end="\n" if last else "", file=sys.stderr, flush=True)
