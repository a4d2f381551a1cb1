"""The report of a search by time: sections, conclusion and files; JSON and plots are in modules beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from models.study.result import Figure, Result, Section, Table
from models.study.search.conclusion import loss_text, too_few, within
from models.study.search.noninferiority import TESTED_METRICS, Verdict
from models.study.search.structured import json_values, plots
from models.study.search.structured.compute import Found, Point
from models.study.search.structured.recovery import Recovered
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, bound, signed, value_or_dash

_FURTHER_TEST = (
    " The recovered network gets a further test on the same queries, also at 2.5 %; it comes on top of the "
    "5 %, and because the network was chosen by the tests above, its pass is weaker evidence than theirs."
)


def result(study: Study, found: Found) -> Result:
    """Return the report of a search by time."""
    return Result(
        "search",
        json_values.as_json(found, study),
        conclusion(found, study),
        _sections(found, study),
        files=_files(found, study),
    )


def conclusion(found: Found, study: Study) -> str:
    """Return one paragraph that follows from the numbers."""
    text = [f"The search took {found.seconds / 60:.1f} minutes, without timing layers and networks."]
    place = found.chosen
    if place is None:
        text.append(
            "Without --holdout and --speedup nothing is chosen: the data that made the networks cannot also "
            "judge them."
            if study.holdout is None
            else too_few(study)
            if found.verdicts[0].outcome == "too few queries"
            else f"Not even the slowest network is shown to be non-inferior at a margin of {study.margin:g}: "
            f"{_losses(found.verdicts[0], study.margin)}."
        )
        return " ".join(text)
    point = found.path[place]
    text.append(f"{_what(found, point)} {_judged(found.verdicts, place, study)}")
    if found.chosen_tuned is not None:
        text.append(
            f"With scales tuned by least squares and folded into the weights: "
            f"{_judged(found.tuned_verdicts, found.chosen_tuned, study)}"
        )
    text.append(_fastest(found, place))
    if found.recovered is not None:
        text.append(_trained(found.recovered, study.margin))
    if found.from_scratch is not None:
        text.append(_from_scratch(found.from_scratch))
    others = [p for p in found.baselines if p.speedup == point.speedup]
    if others:
        text.append(_beside(point, others))
    return " ".join(sentence for sentence in text if sentence)


def _fastest(found: Found, place: int) -> str:
    """Name the fastest network that passed, if it is another one than that at `place`."""
    passed = [i for i, verdict in enumerate(found.verdicts) if verdict.passed]
    if not passed or passed[-1] == place:
        return ""
    pace = found.path[passed[-1]].pace
    return "" if pace is None else f"The fastest network that passes is {pace.speedup:.2f} × as fast."


def _trained(recovered: Recovered, margin: float) -> str:
    text = (
        f"After {recovered.minutes:g} minutes of distillation ({recovered.steps:,} steps, loss "
        f"{recovered.before:.4f} to {recovered.after:.4f}) on pairs without grades"
    )
    if recovered.verdict is None:
        return f"{text} its checkpoint is in {recovered.directory.name}/."
    outcome = "non-inferior" if recovered.verdict.passed else "not shown to be non-inferior"
    return (
        f"{text} it is {outcome}: {_losses(recovered.verdict, margin)}. This is a further test, "
        "outside of the 5 % error rate of the tests above."
    )


def _from_scratch(scratch: Recovered) -> str:
    judged = scratch.held_out or scratch.quality
    values = judged.metrics()
    return (
        f"A network of the same shape, trained as long on the same pairs from random weights "
        f"({scratch.steps:,} steps), reaches QWK {value_or_dash(values['qwk'])} and NDCG@10 "
        f"{value_or_dash(values['ndcg10'])}."
    )


def _what(found: Found, point: Point) -> str:
    config = found.planner.config
    heads, units = point.structure.kept_heads(config), point.structure.kept_units(config)
    speed = ""
    if point.pace is not None:
        speed = (
            f" It is {point.pace.speedup:.2f} × as fast as the intact model ({point.pace.low:.2f} to "
            f"{point.pace.high:.2f}; predicted {point.predicted:.2f}): {point.pace.pairs_per_second:.0f} "
            f"pairs per second on one thread."
        )
    return (
        f"The network for {point.speedup:g} × keeps {len(point.structure.layers)} of {config.num_layers} "
        f"layers, {sum(map(len, heads))} of {sum(map(len, config.kept_heads))} heads and "
        f"{sum(map(len, units)):,} of {sum(config.widths):,} units.{speed}"
    )


def _judged(verdicts: Sequence[Verdict], place: int, study: Study) -> str:
    if not verdicts:
        return "Without --holdout it was not tested."
    assert study.holdout is not None
    verdict = verdicts[place]
    outcome = (
        f"non-inferior at a margin of {study.margin:g}"
        if verdict.passed
        else f"not shown to be non-inferior at a margin of {study.margin:g}"
        + {"not tested": ", because a slower one failed", "failed": ""}.get(verdict.outcome, f" ({TOO_FEW})")
    )
    found = within(study.margin) if verdict.passed else _losses(verdict, study.margin)
    return f"On {len(study.holdout.queries)} held-out queries it is {outcome}: {found}."


def _losses(verdict: Verdict, margin: float) -> str:
    return ", ".join(loss_text(name, loss, margin) for name, loss in verdict.losses.items())


def _beside(point: Point, others: Sequence[Point]) -> str:
    values = [f"{other.method} {other.quality.metrics()['qwk']:.3f}" for other in others]
    return f"QWK on the search data: {point.quality.metrics()['qwk']:.3f}; {', '.join(values)}."


def _sections(found: Found, study: Study) -> tuple[Section, ...]:
    path = Section(
        "Search: quality by speed",
        (
            "For each speed, a knapsack over measured times chooses how many heads and units a layer keeps "
            "(Kwon et al. 2022), once for each number of layers dropped; of these networks the one counts "
            "whose grades differ least from the intact model's on a sample of the search data. Layers are "
            "dropped in the order in which that costs least. Times are of "
            f"{found.planner.tokens:,} tokens in a batch. The same data shows the path below, so it looks "
            "better than it is; the next section is a fair test.",
        ),
        (_path_table(found),),
        (
            Figure(
                "search_speed",
                "Quality on the search data by speed; ours as measured, the baselines as the table predicts.",
                lambda: plots.path(found, study.data),
                alt="Curves of QWK and NDCG@10 against speed, one per method.",
            ),
        ),
    )
    if study.holdout is None:
        return (path, *_removed(found))
    test = Section(
        "Search: the test on held-out queries",
        (
            "A network passes if the one-sided 97.5 % lower bounds of its change in "
            f"{' and '.join(NAMES[name] for name in TESTED_METRICS)} both lie above −{study.margin:g}. "
            "Networks are tested from slow to fast and testing stops at the first failure, plain and tuned "
            "each with half of a 5 % error rate." + ("" if found.recovered is None else _FURTHER_TEST),
        ),
        tuple(
            _test_table(points, verdicts, study.margin, caption)
            for points, verdicts, caption in (
                (found.path, found.verdicts, "Plain networks, in the order tested."),
                (found.tuned, found.tuned_verdicts, "The same parts with tuned scales."),
            )
            if points
        ),
        (
            Figure(
                "search_held_out",
                "Change on held-out queries, with its lower bound, by measured speed; the dotted line is the "
                "intact model's speed.",
                lambda: plots.held_out(found, study.margin),
                alt="Points with bounds against pairs per second, and the margin as a line.",
            ),
        ),
    )
    return (path, test, *_removed(found))


def _removed(found: Found) -> tuple[Section, ...]:
    if found.chosen is None:
        return ()
    point = found.path[found.chosen]
    config = found.planner.config
    heads, units = point.structure.kept_heads(config), point.structure.kept_units(config)
    rows = tuple(
        (
            str(layer),
            *(
                ("gone", "gone")
                if layer in point.structure.skipped
                else (str(len(heads[layer])), str(len(units[layer])))
            ),
        )
        for layer in range(config.num_layers)
    )
    return (
        Section(
            "Search: what was removed",
            (),
            (Table(("layer", "heads kept", "units kept"), rows, "The chosen network."),),
            (
                Figure(
                    "search_removed",
                    "The share of each layer's heads and units that the chosen network keeps.",
                    lambda: plots.removed(found, point),
                    alt="Bars for each layer: the shares of heads and of units that stay.",
                ),
            ),
        ),
    )


def _path_table(found: Found) -> Table:
    rows = [("intact", "1", "1", *_cells(found.intact.metrics()))]
    for point in (*found.path, *found.tuned, *found.baselines):
        measured = "" if point.pace is None else f"{point.pace.speedup:.2f}"
        rows.append((point.method, f"{point.predicted:.2f}", measured, *_cells(point.quality.metrics())))
    return Table(("method", "speed predicted", "measured", *NAMES.values()), tuple(rows))


def _test_table(path: Sequence[Point], verdicts: Sequence[Verdict], margin: float, caption: str) -> Table:
    rows = []
    for point, verdict in zip(path, verdicts, strict=True):
        pace = point.pace
        speed = "" if pace is None else f"{pace.speedup:.2f} ({pace.low:.2f} to {pace.high:.2f})"
        cells = [f"{point.speedup:g}", speed]
        for loss in verdict.losses.values():
            cells += [signed(loss.delta), bound(loss.bound, margin)]
        rows.append((*cells, verdict.outcome))
    header = ["planned for", "measured speed (95 %)"]
    for name in TESTED_METRICS:
        header += [f"Δ {NAMES[name]}", "lower bound"]
    return Table((*header, "test"), tuple(rows), caption)


def _cells(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(value_or_dash(values[name]) for name in NAMES)


def _files(found: Found, study: Study) -> dict[str, str]:
    """Return cost.json, mask.json (for masks/NAME.json, or `headroom prune`) and scales.json."""
    files = {"cost.json": json.dumps({"cost": found.table.to_json()}, indent=1) + "\n"}
    about = {"model": study.classifier.name, "study": "search", "data": study.data.source}
    config = found.planner.config
    if found.chosen is not None:
        mask = found.path[found.chosen].structure.mask(config)
        form = {"mask": mask.to_json(), "spec": mask.spec, "id": mask.id, "heads_on": mask.heads_on}
        layers, units = mask.layers_on, found.path[found.chosen].structure.kept_units(config)
        form |= {"units_on": sum(map(len, units)), "layers_on": layers, **about}
        files["mask.json"] = json.dumps(form, indent=2) + "\n"
    if found.chosen_tuned is not None:
        structure = found.tuned[found.chosen_tuned].structure
        scales = {
            "scales": structure.heads.astype(float).round(6).tolist(),
            "unit_scales": structure.units.astype(float).round(4).tolist(),
            "skipped": sorted(structure.skipped),
            **about,
        }
        files["scales.json"] = json.dumps(scales) + "\n"
    return files
