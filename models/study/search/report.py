"""The report of `search`: verdict, JSON, sections, finding and the mask's file."""

import json
from functools import partial
from typing import Any

import numpy as np

from models.numbers import fixed
from models.quality.bootstrap import MIN_TESTED
from models.quality.evaluation import Evaluation
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.search import plots
from models.study.search.compute import ERROR_RATE, Found, Point
from models.study.search.noninferiority import POWER, TESTED_METRICS, Loss, Verdict
from models.study.search.recovery import Recovered
from models.study.statistics import permutation_p
from models.study.study import Study
from models.study.wording import NAMES, bound, listed, p_value, signed

TESTED = " and of ".join(NAMES[name] for name in TESTED_METRICS)


def result(study: Study, found: Found) -> Result:
    """Return the report of a search."""
    caption = (
        "The change of each smaller network on held-out queries (point) and its lower bound (end of the "
        "line). A network passes if both bounds lie above the margin."
        if found.verdicts
        else "The change of each smaller network on the search data, which looks better than it is."
    )
    picture = Figure(
        "search",
        f"{caption} A loss of more than {plots.DEEPEST} margins is below the picture.",
        partial(plots.changes, found, study),
        alt="Changes of QWK and NDCG@10 by size or speed, and the margin as a line.",
    )
    sections = [_test_section(found, study)] if found.verdicts else []
    if found.chosen is not None:
        sections.append(_chosen_section(study, found.path[found.chosen]))
    sections.append(_path_section(found, study))
    verdict, findings = _verdict(found, study), () if study.by_time else (_finding(found, study),)
    return Result(
        "search", _json(found, study), verdict, " ".join(_sentences(found, study)), tuple(sections), findings,
        picture, _files(found, study),
    )  # fmt: skip


def _verdict(found: Found, study: Study) -> str:
    """Say in one sentence what was chosen, or why nothing was."""
    if study.holdout is None and found.chosen is None:
        return "Nothing is chosen without --holdout: the data that made the masks cannot also judge them."
    few = ""
    if study.holdout is not None and _is_untestable(found):
        few = (
            f"Too few queries: {study.holdout.ranked_queries} of the {len(study.holdout.queries)} "
            f"held-out queries have titles of different grades, and the test needs {MIN_TESTED}."
        )
    if found.chosen is None:
        return few or f"No mask is {_shown(study)}."
    point, config = found.path[found.chosen], study.classifier.config
    heads, units = _counts(point, study)
    total = sum(map(len, config.kept_heads))
    text = f"The chosen network keeps {heads} of {total} heads ({100 * heads / total:.0f} %)"
    if study.by_time:
        layers = f"{point.mask.layers_on} of {config.num_layers} layers"
        text += f", {units:,} of {sum(config.widths):,} units and {layers}"
        text += f", {point.pace.speedup.value:.2f} × as fast" if point.pace else ""
    if study.holdout is None or not found.verdicts:
        return f"{text}; without --holdout it was not tested."
    if few:
        return f"{text}. {few}"
    if not found.verdicts[found.chosen].passed:
        return f"{text}, but is not {_shown(study)}."
    return f"{text}, and is {_shown(study)}."


def _is_untestable(found: Found) -> bool:
    return any(loss.queries_needed is None for verdict in found.verdicts for loss in verdict.losses.values())


def _counts(point: Point, study: Study) -> tuple[int, int]:
    """Return how many heads and units stay."""
    config = study.classifier.config
    return sum(map(len, config.heads_kept(point.mask))), sum(map(len, config.units_kept(point.mask)))


def _shown(study: Study) -> str:
    """Say what is shown of a mask that passed. Its own figures are too good, because they chose it."""
    queries = 0 if study.holdout is None else len(study.holdout.queries)
    return f"shown to lose less than {study.margin:g} of {TESTED} on {queries} held-out queries"


def _sentences(found: Found, study: Study) -> list[str]:
    """Return the conclusion from the numbers."""
    text, verdicts = [], [] if _is_untestable(found) else found.verdicts
    if found.chosen is None and verdicts:
        text.append(f"Already the largest fails: {_losses(verdicts[0], study.margin)}.")
    if found.chosen is not None:
        point, smaller = found.path[found.chosen], found.chosen + 1
        if verdicts and not verdicts[found.chosen].passed:
            text.append(f"It does not pass: {_losses(verdicts[found.chosen], study.margin)}.")
        elif verdicts and smaller < len(verdicts):
            text.append(f"The next smaller one fails: {_losses(verdicts[smaller], study.margin)}.")
        if point.pace is not None:
            speed = point.pace.speedup
            predicted = "" if point.predicted is None else f"; predicted {point.predicted:.2f}"
            text.append(
                f"The chosen one is {speed.value:.2f} × as fast as the intact model "
                f"({speed.low:.2f} to {speed.high:.2f}{predicted}): "
                f"{point.pace.pairs_per_second:.0f} pairs per second on one thread."
            )
        if found.random and point.held_out is not None:
            text.append(_random_sentence(found, point.held_out))
    if found.recovered is not None:
        text.append(_recovered_sentence(found.recovered, study.margin))
    return text


def _random_sentence(found: Found, chosen: Evaluation) -> str:
    """Compare the chosen network with random ones: does it matter which parts of a layer stay?"""
    assert found.intact_held_out is not None
    before, own = found.intact_held_out.metrics(), chosen.metrics()
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


def _recovered_sentence(recovered: Recovered, margin: float) -> str:
    outcome = f"its checkpoint is in {recovered.directory.name}/"
    if recovered.verdict is not None:
        outcome = (
            f"it is {'' if recovered.verdict.passed else 'not '}shown to lose less than {margin:g}: "
            f"{_losses(recovered.verdict, margin)}. This is a further test on the same queries, so its pass "
            "is weaker evidence"
        )
    return (
        f"After {recovered.minutes:g} minutes of distillation ({recovered.steps:,} steps, loss "
        f"{recovered.before:.4f} to {recovered.after:.4f}) on pairs without grades {outcome}."
    )


def _losses(verdict: Verdict, margin: float) -> str:
    return ", ".join(_loss(name, loss, margin) for name, loss in verdict.losses.items())


def _loss(name: str, loss: Loss, margin: float) -> str:
    """Return one metric's change with its lower bound, and whether the queries were enough."""
    text = f"{NAMES[name]} {signed(loss.delta)} (lower bound {bound(loss.bound, margin)}"
    if loss.queries_needed is not None and loss.power < POWER and loss.delta > -margin:
        text += f"; if nothing is lost, about {loss.queries_needed:,} queries would show it"
    return f"{text})"


def _path_section(found: Found, study: Study) -> Section:
    rows = [("intact", *_cells(found.intact))]
    rows += [(_size(point, study), *_cells(point.quality)) for point in found.path]
    method = (
        "Heads go in the order of a greedy backward elimination under the full Fisher information of the "
        "gates (Kwon et al. 2022), estimated on the search data. "
    )
    if study.by_time:
        method = (
            "The loss without a part is estimated by the full Fisher information of the gates (Kwon et al. "
            "2022) on the search data. For each speed a knapsack over measured times chooses how many heads "
            "and units a layer keeps, once for each number of layers dropped; of these networks the one "
            "counts whose grades differ least from the intact model's on a sample. "
        )
    method += (
        "The table is of the same data, so it looks better than it is; the test on other queries is fair."
    )
    caption = "Quality on the search data, which chose the heads."
    return Section(
        "Search: the smaller networks", (method,), (Table(("size", *NAMES.values()), tuple(rows), caption),)
    )


def _size(point: Point, study: Study) -> str:
    """Return what a row of a table is about: the speed wanted, or the number of heads."""
    return f"{point.planned:g} ×" if point.planned else f"{_counts(point, study)[0]} heads"


def _test_section(found: Found, study: Study) -> Section:
    rows = []
    for point, verdict in zip(found.path, found.verdicts, strict=True):
        cells = [_size(point, study)]
        if study.by_time and point.pace is not None:
            cells.append(f"{point.pace.speedup.value:.2f}")
        for loss in verdict.losses.values():
            cells += [signed(loss.delta), bound(loss.bound, study.margin)]
        rows.append((*cells, "–" if _is_untestable(found) else verdict.outcome))
    header = ["size", "measured speed"] if study.by_time else ["size"]
    for name in TESTED_METRICS:
        header += [f"Δ {NAMES[name]}", "lower bound"]
    return Section(
        "Search: the test on held-out queries",
        (
            f"A network passes if the one-sided 97.5 % lower bounds of its change of {TESTED} both lie "
            f"above −{study.margin:g}. "
            "Networks are tested from large to small and testing stops at the first failure "
            "(fixed-sequence testing), so that the chance of choosing any that is worse than the "
            "margin is at most 2.5 %.",
        ),
        (Table((*header, "test"), tuple(rows), "In the order tested."),),
    )


def _chosen_section(study: Study, point: Point) -> Section:
    config = study.classifier.config
    heads, units = config.heads_kept(point.mask), config.units_kept(point.mask)
    columns = 3 if study.by_time else 2  # the number of units says nothing if only heads may go
    rows = tuple(
        (str(layer), str(len(heads[layer])), f"{len(units[layer]):,}")[:columns]
        if layer not in point.mask.skipped
        else (str(layer), "gone", "gone")
        for layer in range(config.num_layers)
    )
    kept = Figure("search_mask", "The heads that the chosen network keeps.", partial(plots.kept, point))
    return Section(
        "Search: what stays",
        (
            "Speeds are of one thread: the median ratio of rounds in which the networks took turns, with "
            "the lowest and the highest one. Random networks that keep as many heads and units of each layer "
            "say, on the held-out queries, whether it matters which of them stay: p is the share of these "
            "networks and the chosen one that lose no more than it. Above 0.05 this may be chance. With "
            f"{study.effort.orders} random networks p is never below {1 / (1 + study.effort.orders):.2f}.",
        ),
        (Table(("layer", "heads kept", "units kept")[:columns], rows),),
        (kept,),
    )


def _finding(found: Found, study: Study) -> Finding:
    """Return how many heads can go beside the published number."""
    ours = "none is shown to be harmless"
    if found.chosen is not None:
        heads, _ = _counts(found.path[found.chosen], study)
        gone = 1 - heads / sum(map(len, study.classifier.config.kept_heads))
        ours = f"{100 * gone:.0f} % ({_shown(study)})"
    return Finding("a fifth of the heads can go at no loss", "about 20 %", ours)


def _cells(quality: Evaluation) -> tuple[str, ...]:
    return tuple(map(fixed, _metrics(quality).values()))


def _json(found: Found, study: Study) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    path = []
    for index, point in enumerate(found.path):
        content = _point(point, study)
        if point.held_out is not None:
            verdict = found.verdicts[index]
            content["holdout"] = {**_metrics(point.held_out), **_tested(verdict), "tested": verdict.tested}
        path.append(content)
    pace, chosen = found.intact_pace, found.chosen
    return {
        "what": study.what,
        "wanted_speedup": study.speedup,
        "path": path,
        "chosen": None if chosen is None else {**path[chosen], "file": "mask.json"},
        "random": [_metrics(one) for one in found.random],
        "recovered": None if found.recovered is None else _recovered(found.recovered),
        "non_inferiority": {
            "margin": study.margin,
            "metrics": TESTED_METRICS,
            "alpha": ERROR_RATE,
            "test": "one-sided cluster bootstrap-t over held-out queries, both metrics, fixed sequence",
            "queries": 0 if study.holdout is None else len(study.holdout.queries),
        },
        "intact_pairs_per_second": None if pace is None else pace.pairs_per_second,
    }


def _point(point: Point, study: Study) -> dict[str, Any]:
    heads, units = _counts(point, study)
    return {
        "heads_on": heads,
        "units_on": units,
        "layers_on": point.mask.layers_on,
        "spec": point.mask.spec,
        "speedup_wanted": point.planned,
        "speedup_predicted": point.predicted,
        "speed": point.pace,
        **_metrics(point.quality),
    }


def _tested(verdict: Verdict) -> dict[str, Any]:
    return {"passed": verdict.passed, "loss": verdict.losses}


def _recovered(recovered: Recovered) -> dict[str, Any]:
    content = {
        "directory": recovered.directory.name,
        "steps": recovered.steps,
        "minutes": recovered.minutes,
        "loss_first_tenth": recovered.before,
        "loss_last_tenth": recovered.after,
        **_metrics(recovered.quality),
    }
    if recovered.held_out is not None and recovered.verdict is not None:
        content["holdout"] = {**_metrics(recovered.held_out), **_tested(recovered.verdict)}
    return content


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    values = evaluation.metrics()
    return {name: values[name] for name in NAMES}


def _files(found: Found, study: Study) -> dict[str, str | None]:
    """Return mask.json, which fits a checkpoint's masks/NAME.json, serve.yaml and `headroom prune`."""
    if found.chosen is None:
        return {"mask.json": None}
    point = found.path[found.chosen]
    mask = point.mask
    heads, units = _counts(point, study)
    form: dict[str, object] = {"mask": mask.to_json(), "spec": mask.spec, "id": mask.id, "heads_on": heads}
    if study.by_time:
        form |= {"units_on": units, "layers_on": mask.layers_on}
    form |= {"model": study.classifier.name, "study": "search", "data": study.data.source}
    return {"mask.json": json.dumps(form, indent=2) + "\n"}
