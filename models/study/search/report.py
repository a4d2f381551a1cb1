"""The report of `search`: verdict, picture, tables, JSON and the mask's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.files import Json
from headroom.models.masks.head_mask import HeadMask
from headroom.models.numbers import fixed
from headroom.models.quality.metrics import NAMES
from headroom.models.quality.noninferiority import NonInferiority
from headroom.models.study import plots
from headroom.models.study.page import Figure, Result, Section, Table
from headroom.models.study.search.compute import Candidate, SearchResult, measure
from headroom.models.study.statistics import metrics_of, permutation_p
from headroom.models.study.study import Study
from headroom.models.study.wording import about, listed, method, p_value, signed, speed_claim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PASSED = "mask_passed.json"
"""The mask of the best network that passed, if the one of the wanted speed did not."""

DEEPEST = 12
"""The picture reaches down to a loss of so many margins: a larger one would flatten the rest."""


def run(study: Study) -> Result:
    """Search, and report what was found."""
    search = measure(study)
    where = "held-out queries" if study.holdout is not None else "the search data, which chose the parts"
    caption = (
        f"The change of each smaller network (point) on {where}; the end of its line is the lower bound. "
        "A network passes if every bound lies above the margin. "
        f"A loss of more than {DEEPEST} margins is below the picture."
    )
    picture = Figure("search", caption, partial(_draw, search, study))
    sections = [_networks_section(search, study)]
    files: dict[str, str | None] = {"mask.json": None, PASSED: None}
    if search.chosen is not None:
        sections.append(_chosen_section(search, search.chosen, study))
        files["mask.json"] = _mask_file(study, search.chosen.mask)
        best = search.best_that_passed
        if best is not None and best is not search.chosen:
            files[PASSED] = _mask_file(study, best.mask)
    return Result(
        "search", _json(search, study), _verdict(search, study), tuple(sections), picture, (), files
    )


def _verdict(search: SearchResult, study: Study) -> str:
    """Say what the network loses, what that shows, and what it is: its own figures are too good, because they
    chose it."""
    chosen = search.chosen
    if chosen is None or chosen.pace is None:
        return _nothing_chosen(search, study)
    speed = speed_claim(chosen.pace.speedup, "the intact network", study.speedup or 1.0)
    parts = f"It keeps {_kept(chosen.mask, study)} and {speed}."
    if chosen.test is None:
        return (
            f"The chosen network is not tested: that takes --holdout, because the data that made the "
            f"networks cannot judge them. {parts}"
        )
    if chosen.test.passed:
        return f"{chosen.test.sentence('The chosen network')} {parts}"
    sentence = chosen.test.sentence("The network of the wanted speed")
    return f"{sentence} {parts}{_power(chosen.test)}{_best(search, study)}"


def _nothing_chosen(search: SearchResult, study: Study) -> str:
    """Say why no network is chosen, and what the largest one that was tried loses."""
    if search.intact.held_out is None:
        return (
            "Nothing is chosen: that takes --holdout, because the data that made the networks cannot judge "
            "them."
        )
    largest = search.candidates[0] if search.candidates else None
    if largest is None or largest.test is None:
        return "Nothing is chosen: there is no smaller network to try."
    name = f"Nothing is chosen. The largest network that was tried ({_kept(largest.mask, study)})"
    return f"{largest.test.sentence(name)}{_power(largest.test)}"


def _kept(mask: HeadMask, study: Study) -> str:
    """Say how many heads, units and layers stay."""
    config = study.classifier.config
    heads, units = _counts(mask, study)
    kept = [f"{heads} of {sum(map(len, config.kept_heads))} heads"]
    if units < sum(config.widths):
        kept.append(f"{units:,} of {sum(config.widths):,} units")
    if mask.skipped:
        kept.append(f"{len(mask.layers_kept)} of {config.num_layers} layers")
    return listed(kept)


def _best(search: SearchResult, study: Study) -> str:
    """Name the best network that passed, if the wanted one did not; empty if none did."""
    best = search.best_that_passed
    if best is None or best.test is None:
        return " No network passed."
    speed = "" if best.pace is None else f" and {speed_claim(best.pace.speedup, 'the intact network')}"
    return (
        f" The best that passed keeps {_kept(best.mask, study)}{speed}; it {best.test.changes}. Its mask is "
        f"{PASSED}."
    )


def _power(test: NonInferiority) -> str:
    """Say how many held-out queries would show that a network that loses nothing is good enough; empty if as
    many are here, or if it is not known."""
    needed = test.queries_needed
    if needed is None or needed <= test.queries or not test.has_skill:
        return ""
    return f" If it loses nothing, about {about(needed)} queries like these would show that."


def _counts(mask: HeadMask, study: Study) -> tuple[int, int]:
    """Return how many heads and units stay."""
    config = study.classifier.config
    return sum(map(len, config.heads_kept(mask))), sum(map(len, config.units_kept(mask)))


SIZES = ("heads", "units", "layers")
"""The columns that say how large a network is."""


def _networks_section(search: SearchResult, study: Study) -> Section:
    """Return the tables of all networks: size, speed and quality on the search data, and the test."""
    networks = (search.intact, *search.candidates)
    columns = (
        *SIZES,
        "speed wanted",
        "speed",
        "pairs per second",
        *(NAMES[name] for name in study.measures.names),
    )
    rows = tuple((*_size(one, study), *_speed_and_quality(one)) for one in networks)
    caption = "Quality on the search data, which chose the parts and so looks better than it is."
    tables = [Table(columns, rows, caption)]
    methods = [method("search", study.measures)]
    rows = tuple((*_size(one, study), *_test(one.test)) for one in networks if one.test is not None)
    if rows:
        bounds = (cell for name in study.measures.tested for cell in (f"Δ {NAMES[name]}", "lower bound"))
        header = (*SIZES, *bounds, "queries needed", "test")
        tables.append(Table(header, rows, "The test on held-out queries, in this order."))
        methods.append(method("test", study.measures))
    return Section("Search: the smaller networks", tuple(methods), tuple(tables))


def _size(network: Candidate, study: Study) -> tuple[str, ...]:
    heads, units = _counts(network.mask, study)
    return str(heads), f"{units:,}", str(len(network.mask.layers_kept))


def _speed_and_quality(network: Candidate) -> list[str]:
    wanted = "–" if network.speedup is None else f"{network.speedup:g}"
    speed = ["–", "–"]
    if network.pace is not None:
        speed = [network.pace.speedup.text(2), f"{network.pace.pairs_per_second:.0f}"]
    return [wanted, *speed, *map(fixed, metrics_of(network.quality).values())]


def _test(test: NonInferiority) -> list[str]:
    losses = test.losses.values()
    cells = [cell for loss in losses for cell in (signed(loss.change.value, 4), signed(loss.bound, 4))]
    needed = "–" if test.queries_needed is None else f"{test.queries_needed:,}"
    outcome = "failed" if test.tested else "not tested"
    return [*cells, needed, "passed" if test.passed else outcome]


def _chosen_section(search: SearchResult, chosen: Candidate, study: Study) -> Section:
    """Return what the chosen network keeps, and how it compares with random ones."""
    config = study.classifier.config
    heads = config.heads_kept(chosen.mask)
    units = config.units_kept(chosen.mask)
    rows = tuple(
        (str(layer), ", ".join(map(str, heads[layer])) or "none", f"{len(units[layer]):,}")
        for layer in chosen.mask.layers_kept
    )
    tables = [Table(("layer", "heads kept", "units kept"), rows)]
    if search.intact.held_out is not None and chosen.held_out is not None:
        intact = metrics_of(search.intact.held_out)
        of_chosen = metrics_of(chosen.held_out)
        of_random = [metrics_of(one) for one in search.random]
        compared = []
        for name in study.measures.tested:
            change = of_chosen[name] - intact[name]
            random = np.array([one[name] - intact[name] for one in of_random])
            p = p_value(permutation_p(change, random))
            compared.append((NAMES[name], signed(change), signed(float(np.median(random))), p))
        header = ("change of", "the chosen network", f"{len(of_random)} random ones, median", "p")
        tables.append(Table(header, tuple(compared)))
    return Section("Search: what stays", (method("chosen", study.measures),), tuple(tables))


def _json(search: SearchResult, study: Study) -> Json:
    """Return the keys of report.json that belong to this study."""
    pace = search.intact.pace
    chosen = None
    passed = None
    if search.chosen is not None:
        chosen = _network_json(search.chosen, study) | {"file": "mask.json"}
        if search.best_that_passed is not None:
            file = "mask.json" if search.best_that_passed is search.chosen else PASSED
            passed = _network_json(search.best_that_passed, study) | {"file": file}
    return {
        "what": study.what,
        "wanted_speedup": study.speedup,
        "path": [_network_json(one, study) for one in search.candidates],
        "chosen": chosen,
        "best_that_passed": passed,
        "random": [metrics_of(one) for one in search.random],
        "intact_pairs_per_second": None if pace is None else pace.pairs_per_second,
    }


def _network_json(one: Candidate, study: Study) -> Json:
    """Return a network's size, speed and metrics, and under `holdout` those on held-out queries with the
    test."""
    heads, units = _counts(one.mask, study)
    content: Json = {
        "heads_on": heads,
        "units_on": units,
        "layers_on": len(one.mask.layers_kept),
        "spec": one.mask.spec,
        "speedup_wanted": one.speedup,
        "speedup_predicted": one.predicted,
        "speed": one.pace,
        **metrics_of(one.quality),
    }
    if one.held_out is not None and one.test is not None:
        content["holdout"] = metrics_of(one.held_out) | one.test.as_json()
    return content


def _mask_file(study: Study, mask: HeadMask) -> str:
    """Return mask.json, which fits a checkpoint's masks/NAME.json, serve.yaml and `headroom prune`."""
    form = {"mask": mask.to_json(), "spec": mask.spec, "id": mask.id, "model": study.classifier.name}
    return json.dumps(form | {"study": "search", "data": study.data.source}, indent=2) + "\n"


def _draw(search: SearchResult, study: Study) -> plots.Drawing:
    """Draw the change on held-out queries with its lower bound, or without them on the search data, one panel
    per metric; the intact model is on the left."""
    metrics = study.measures.tested
    drawing, (panels,) = plots.figure(6 * len(metrics), 4.8, columns=len(metrics), sharex=True, squeeze=False)
    x = [_x(one, study) for one in search.candidates]
    for axes, metric in zip(panels, metrics, strict=True):
        _draw_metric(axes, metric, search, study.margin, x)
        axes.set_xlabel("times as fast as the intact model" if study.by_time else "heads kept")
    if not study.by_time:
        panels[0].invert_xaxis()
    panels[0].legend(fontsize=8, loc="best")
    return drawing


def _draw_metric(axes: Axes, metric: str, search: SearchResult, margin: float, x: Sequence[float]) -> None:
    """Draw the change of one metric. x: the networks' positions on the panel's x axis."""
    intact = metrics_of(search.intact.quality)[metric]
    passed = np.array([one.test is not None and one.test.passed for one in search.candidates])
    ends = np.reshape([_change_and_bound(one, metric, intact) for one in search.candidates], (-1, 2))
    axes.axhline(0, color="black", lw=0.8)
    axes.axhline(-margin, color=plots.ORANGE, lw=1.2, ls="--", label=f"margin −{margin:g}")
    axes.vlines(x, ends[:, 1], ends[:, 0], color=plots.BLUE, lw=1.2)
    for which, label, face in ((passed, "passed", plots.BLUE), (~passed, "not passed", "white")):
        changes = ends[which, 0]
        axes.plot(np.compress(which, x), changes, "o", color=plots.BLUE, markerfacecolor=face, label=label)
    lowest = float(np.nanmin([*ends[:, 1], -margin]))
    axes.set_ylim(bottom=1.05 * max(lowest, -DEEPEST * margin))
    axes.set(ylabel=f"change of {NAMES[metric]}", title=NAMES[metric])


def _x(network: Candidate, study: Study) -> float:
    """Return how many times as fast a network is, in a search by time; else how many heads it keeps."""
    if network.pace is not None and study.by_time:
        return network.pace.speedup.value
    return network.mask.heads_on


def _change_and_bound(network: Candidate, metric: str, intact: float) -> tuple[float, float]:
    """Return the change of a metric and its lower bound; the same twice if nothing could be tested.

    intact: the intact model's value on the search data, for networks that were not tested.
    """
    if network.test is None:
        change = metrics_of(network.quality)[metric] - intact
        return change, change
    loss = network.test.losses[metric]
    return loss.change.value, loss.bound if np.isfinite(loss.bound) else loss.change.value
