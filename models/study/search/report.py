"""The report of `search`: verdict, picture, tables, JSON and the mask's file."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.numbers import fixed
from models.quality.bootstrap import MIN_TESTED
from models.quality.evaluation import Evaluation
from models.study import plots
from models.study.result import Figure, Result, Section, Table
from models.study.search.compute import Found, Tested, measure
from models.study.search.noninferiority import ERROR_RATE, POWER, TESTED_METRICS, Loss, Verdict
from models.study.search.recovery import Student
from models.study.statistics import permutation_p
from models.study.study import Study
from models.study.wording import NAMES, bound, listed, p_value, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TESTED = " and of ".join(NAMES[name] for name in TESTED_METRICS)
DEEPEST = 12
"""The picture reaches down to a loss of so many margins: a larger one would flatten the rest."""


def run(study: Study) -> Result:
    """Search, and report what was found."""
    found = measure(study)
    caption = (
        "The change of each smaller network on held-out queries (point) and its lower bound (end of the "
        "line). A network passes if both bounds lie above the margin."
        if found.verdicts
        else "The change of each smaller network on the search data, which looks better than it is."
    )
    picture = Figure(
        "search",
        f"{caption} A loss of more than {DEEPEST} margins is below the picture.",
        partial(_draw_changes, found, study),
    )
    sections = [_networks_section(found, study)]
    files: dict[str, str | None] = {"mask.json": None}
    if found.chosen is not None:
        mask = found.plans[found.chosen].mask
        sections.append(_chosen_section(study, mask))
        files["mask.json"] = _mask_file(study, mask)
    verdict, conclusion = _verdict(found, study), " ".join(_sentences(found, study))
    return Result("search", _json(found, study), verdict, tuple(sections), picture, (), conclusion, files)


def _verdict(found: Found, study: Study) -> str:
    """Say in one sentence what was chosen, or why nothing was."""
    if study.holdout is None and found.chosen is None:
        return "Nothing is chosen without --holdout: the data that made the masks cannot also judge them."
    few = ""
    if study.holdout is not None and not _is_testable(found):
        few = (
            f"Too few queries: {study.holdout.ranked_queries} of the {len(study.holdout.queries)} "
            f"held-out queries have titles of different grades, and the test needs {MIN_TESTED}."
        )
    if found.chosen is None:
        return few or f"No mask is {_shown(study)}."
    config, mask = study.classifier.config, found.plans[found.chosen].mask
    heads, units = _counts(mask, study)
    total = sum(map(len, config.kept_heads))
    text = f"The chosen network keeps {heads} of {total} heads ({100 * heads / total:.0f} %)"
    if study.by_time:
        text += (
            f", {units:,} of {sum(config.widths):,} units and {mask.layers_on} of {config.num_layers} layers"
        )
        text += f", {found.paces[found.chosen].speedup.value:.2f} × as fast"
    if not found.verdicts:
        return f"{text}; without --holdout it was not tested."
    if few:
        return f"{text}. {few}"
    is_shown = "and is" if found.verdicts[found.chosen].passed else "but is not"
    return f"{text}, {is_shown} {_shown(study)}."


def _is_testable(found: Found) -> bool:
    return all(verdict.is_testable for verdict in found.verdicts)


def _counts(mask: HeadMask, study: Study) -> tuple[int, int]:
    """Return how many heads and units stay."""
    config = study.classifier.config
    return sum(map(len, config.heads_kept(mask))), sum(map(len, config.units_kept(mask)))


def _shown(study: Study) -> str:
    """Say what is shown of a mask that passed. Its own figures are too good, because they chose it."""
    queries = 0 if study.holdout is None else len(study.holdout.queries)
    return f"shown to lose less than {study.margin:g} of {TESTED} on {queries} held-out queries"


def _sentences(found: Found, study: Study) -> list[str]:
    """Return the conclusion from the numbers."""
    text, chosen = [], found.chosen
    verdicts = found.verdicts if _is_testable(found) else []
    if chosen is None and verdicts:
        text.append(f"Already the largest fails: {_losses(verdicts[0], study.margin)}.")
    if chosen is not None:
        if verdicts and not verdicts[chosen].passed:
            text.append(f"It does not pass: {_losses(verdicts[chosen], study.margin)}.")
        elif chosen + 1 < len(verdicts):
            text.append(f"The next smaller one fails: {_losses(verdicts[chosen + 1], study.margin)}.")
        pace, planned = found.paces[chosen], found.plans[chosen].predicted
        predicted = "" if planned is None else f"; predicted {planned:.2f}"
        text.append(
            f"The chosen one is {pace.speedup.value:.2f} × as fast as the intact model "
            f"({pace.speedup.low:.2f} to {pace.speedup.high:.2f}{predicted}): "
            f"{pace.pairs_per_second:.0f} pairs per second on one thread."
        )
        if found.random:
            text.append(_random_sentence(found, found.tested[chosen]))
    if found.recovered is not None:
        text.append(_recovered_sentence(found.recovered, study.recover_minutes))
    return text


def _random_sentence(found: Found, chosen: Tested) -> str:
    """Compare the chosen network with random ones: does it matter which parts of a layer stay?"""
    assert found.intact.held_out is not None
    assert chosen.held_out is not None
    before, own = found.intact.held_out.metrics(), chosen.held_out.metrics()
    others = [one.metrics() for one in found.random]
    changes = []
    for metric in TESTED_METRICS:
        random = np.array([one[metric] - before[metric] for one in others])
        change = own[metric] - before[metric]
        if np.isfinite(change):
            p = p_value(permutation_p(change, random))
            changes.append(
                f"{NAMES[metric]} by {signed(float(np.median(random)))} at the median (the chosen one by "
                f"{signed(change)}; p {p})"
            )
    return f"{len(others)} random networks that keep as many parts of each layer change {listed(changes)}."


def _recovered_sentence(recovered: Student, minutes: float) -> str:
    before, after = recovered.before_and_after
    return (
        f"After {minutes:g} minutes of distillation ({len(recovered.losses):,} steps, loss {before:.4f} to "
        f"{after:.4f}) on pairs without grades its checkpoint is in recovered/; `headroom evaluate` compares "
        "it with the intact model."
    )


def _losses(verdict: Verdict, margin: float) -> str:
    return ", ".join(_loss(name, loss, margin) for name, loss in verdict.loss.items())


def _loss(name: str, loss: Loss, margin: float) -> str:
    """Return one metric's change with its lower bound, and whether the queries were enough."""
    text = f"{NAMES[name]} {signed(loss.delta)} (lower bound {bound(loss.bound, margin)}"
    if loss.queries_needed is not None and loss.power < POWER and loss.delta > -margin:
        text += f"; if nothing is lost, about {loss.queries_needed:,} queries would show it"
    return f"{text})"


def _networks_section(found: Found, study: Study) -> Section:
    """Return the table of all networks: quality on the search data, and the test."""
    header = ["size", *(["measured speed"] if study.by_time else []), *NAMES.values()]
    rows = [["intact", *(["1"] if study.by_time else []), *map(fixed, _named(found.intact.quality).values())]]
    for index, (plan, tested) in enumerate(zip(found.plans, found.tested, strict=True)):
        size = f"{_counts(plan.mask, study)[0]} heads" if plan.speedup is None else f"{plan.speedup:g} ×"
        speed = [f"{found.paces[index].speedup.value:.2f}"] if study.by_time else []
        rows.append([size, *speed, *map(fixed, _named(tested.quality).values())])
        if tested.verdict is not None:
            for loss in tested.verdict.loss.values():
                rows[-1] += [signed(loss.delta), bound(loss.bound, study.margin)]
            rows[-1].append(tested.verdict.outcome)
    if found.verdicts:
        for name in TESTED_METRICS:
            header += [f"Δ {NAMES[name]}, held out", "lower bound"]
        header.append("test")
        rows[0] += ["–"] * (len(header) - len(rows[0]))
    method = (
        "Heads go in the order of a greedy backward elimination under the full Fisher information of the "
        "gates (Kwon et al. 2022), estimated on the search data."
    )
    if study.by_time:
        method = (
            "The loss without a part is estimated by the full Fisher information of the gates (Kwon et al. "
            "2022) on the search data. For each speed a knapsack over measured times chooses how many heads "
            "and units a layer keeps, once for each number of layers dropped; of these networks the one "
            "counts whose grades differ least from the intact model's on a sample."
        )
    test = (
        f"A network passes if the one-sided 97.5 % lower bounds of its change of {TESTED} both lie above "
        f"−{study.margin:g}. Networks are tested from large to small and testing stops at the first failure "
        "(fixed-sequence testing), so that the chance of choosing any that is worse than the margin is at "
        "most 2.5 %."
    )
    caption = "Quality on the search data, which chose the parts and so looks better than it is"
    caption += "; then the test on held-out queries, in this order." if found.verdicts else "."
    table = Table(tuple(header), tuple(map(tuple, rows)), caption)
    return Section("Search: the smaller networks", (method, test), (table,))


def _chosen_section(study: Study, mask: HeadMask) -> Section:
    config = study.classifier.config
    heads, units = config.heads_kept(mask), config.units_kept(mask)
    rows = tuple(
        (str(layer), ", ".join(map(str, heads[layer])) or "none", f"{len(units[layer]):,}")
        if layer not in mask.skipped
        else (str(layer), "gone", "gone")
        for layer in range(config.num_layers)
    )
    return Section(
        "Search: what stays",
        (
            "Speeds are of one thread: the median ratio of rounds in which the networks took turns, with "
            "the lowest and the highest one. Random networks that keep as many heads and units of each layer "
            "say, on the held-out queries, whether it matters which of them stay: p is the share of these "
            "networks and the chosen one that lose no more than it. Above 0.05 this may be chance. With "
            f"{study.effort.orders} random networks p is never below {1 / (1 + study.effort.orders):.2f}.",
        ),
        (Table(("layer", "heads kept", "units kept"), rows),),
    )


def _json(found: Found, study: Study) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    path = []
    for index, (plan, tested) in enumerate(zip(found.plans, found.tested, strict=True)):
        heads, units = _counts(plan.mask, study)
        size = {"heads_on": heads, "units_on": units, "layers_on": plan.mask.layers_on}
        speed = {"speedup_wanted": plan.speedup, "speedup_predicted": plan.predicted}
        path.append(
            {**size, "spec": plan.mask.spec, **speed, "speed": found.paces.get(index), **_metrics(tested)}
        )
    pace, chosen, recovered = found.intact_pace, found.chosen, found.recovered
    return {
        "what": study.what,
        "wanted_speedup": study.speedup,
        "path": path,
        "chosen": None if chosen is None else {**path[chosen], "file": "mask.json"},
        "random": [_named(one) for one in found.random],
        "recovered": recovered
        and {
            "directory": "recovered",
            "steps": len(recovered.losses),
            "minutes": study.recover_minutes,
            "loss": recovered.before_and_after,
        },
        "non_inferiority": {
            "margin": study.margin,
            "metrics": TESTED_METRICS,
            "alpha": ERROR_RATE,
            "test": "one-sided cluster bootstrap-t over held-out queries, both metrics, fixed sequence",
            "queries": 0 if study.holdout is None else len(study.holdout.queries),
        },
        "intact_pairs_per_second": None if pace is None else pace.pairs_per_second,
    }


def _metrics(tested: Tested) -> dict[str, Any]:
    """Return a network's metrics, and under `holdout` those on held-out queries with the verdict."""
    content: dict[str, Any] = _named(tested.quality)
    if tested.held_out is not None and (verdict := tested.verdict) is not None:
        judged = {"passed": verdict.passed, "loss": verdict.loss, "tested": verdict.tested}
        content["holdout"] = {**_named(tested.held_out), **judged}
    return content


def _named(evaluation: Evaluation) -> dict[str, float]:
    values = evaluation.metrics()
    return {name: values[name] for name in NAMES}


def _mask_file(study: Study, mask: HeadMask) -> str:
    """Return mask.json, which fits a checkpoint's masks/NAME.json, serve.yaml and `headroom prune`."""
    form = {"mask": mask.to_json(), "spec": mask.spec, "id": mask.id, "model": study.classifier.name}
    return json.dumps(form | {"study": "search", "data": study.data.source}, indent=2) + "\n"


def _draw_changes(found: Found, study: Study) -> Drawing:
    """Draw the change on held-out queries with its lower bound, or without them on the search data, one panel
    per metric; the intact model is on the left."""
    drawing, panels = plots.figure(12, 4.8, columns=2, sharex=True)
    x = np.array([plan.mask.heads_on for plan in found.plans], np.float64)
    if study.by_time:
        x = np.array([pace.speedup.value for pace in found.paces.values()])
    passed = np.array([verdict.passed for verdict in found.verdicts], np.bool_)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(0, color="black", lw=0.8)
        axes.axhline(-study.margin, color=plots.ORANGE, lw=1.2, ls="--", label=f"margin −{study.margin:g}")
        before = found.intact.quality.metrics()[metric]
        values = np.array([one.quality.metrics()[metric] - before for one in found.tested])
        lowest = values.min()
        if found.verdicts:
            losses = [verdict.loss[metric] for verdict in found.verdicts]
            values, bounds = np.array([one.delta for one in losses]), np.array([one.bound for one in losses])
            shown = np.isfinite(bounds)
            axes.vlines(x[shown], bounds[shown], values[shown], color=plots.BLUE, lw=1.2)
            for which, label, face in ((passed, "passed", plots.BLUE), (~passed, "not passed", "white")):
                points = x[which], values[which]
                axes.plot(*points, "o", color=plots.BLUE, markerfacecolor=face, label=label)
            lowest = min([*values, *bounds[shown]])
        else:
            axes.plot(x, values, "o-", color=plots.BLUE, label="smaller networks")
        axes.set_ylim(bottom=1.05 * max(min(lowest, -study.margin), -DEEPEST * study.margin))
        axes.set(
            xlabel="times as fast as the intact model" if study.by_time else "heads kept",
            ylabel=f"change of {NAMES[metric]}",
            title=f"{NAMES[metric]} on {'held-out queries' if found.verdicts else 'the search data'}",
        )
    if not study.by_time:
        panels[0].invert_xaxis()
    panels[0].legend(fontsize=8, loc="best")
    return drawing
