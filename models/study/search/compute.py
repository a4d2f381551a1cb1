"""The best network for each number of heads kept, or for each speed, and the smallest that passes a test on
other queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.compress.structure import Structure
from models.errors import ModelError
from models.quality.evaluation import Evaluation
from models.study.base import Heads, held_heads, weights_without
from models.study.gradients import DifferentiableNetwork, Gradients
from models.study.inputs import spread_over_queries
from models.study.search import plans
from models.study.search.networks import Networks, Pace
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.plans import HEADS, LAYERS, UNITS, Planner
from models.study.search.recovery import Recovered, recover
from models.study.search.rivals import Rivals, compete
from models.study.search.times import Times, is_removable, measure_times
from models.study.statistics import Resamples
from models.study.study import Study

GRADIENT_PAIRS = 2_048
SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
COMPARED_KEPT = (0.8, 0.6, 0.4, 0.2)
COMPARED_SPEEDUPS = (1.5, 2.0, 3.0)
"""Where the search is compared with other methods."""
RANDOM_SEEDS = 3
ERROR_RATE = 0.025
"""The chance that a mask worse than the margin is chosen."""
SAME = 1e-6
"""Divergences up to this are rounding."""

OURS, MICHEL, MAGNITUDE, RANDOM = "full Fisher", "Michel et al. 2019", "magnitude", "random"
TIMED, TOP = "Fisher and measured times", "top layers dropped"


@dataclass(frozen=True)
class Point:
    """One network. planned: the speed that it was planned for, None if heads were counted; predicted: by
    the times. quality: on the search data; held_out: on the held-out queries; pace: as measured;
    divergence: of its grades from the intact model's, on a sample."""

    method: str
    structure: Structure
    quality: Evaluation
    planned: float | None = None
    predicted: float | None = None
    held_out: Evaluation | None = None
    pace: Pace | None = None
    divergence: float | None = None


@dataclass(frozen=True)
class Found:
    """The networks of all methods, from large to small, and the tests of them.

    path: the search's own; verdicts: on each of them. chosen: the index in `path` of the smallest that
    passed, or of the wanted speed. rivals: random masks beside the chosen one. times, layer_order: of a
    search by time; the order is that in which layers go, with the divergence without those so far.
    """

    intact: Evaluation
    intact_held_out: Evaluation | None
    path: list[Point]
    baselines: list[Point]
    verdicts: list[Verdict]
    chosen: int | None
    intact_pace: Pace | None = None
    rivals: Rivals | None = None
    times: Times | None = None
    layer_order: tuple[tuple[int, float], ...] = ()
    recovered: Recovered | None = None


def measure(study: Study) -> Found:
    """Find the networks on `data` and test them on `holdout`, whose queries are others (`check_apart`).

    Raises ModelError if no network is as fast as wanted.
    """
    clf = study.classifier
    if clf.config.int8 and study.recover_minutes:
        raise ModelError(f"{clf.name} is int8, and 8-bit weights cannot be trained; recover the float model")
    networks = Networks(study)
    found = _by_time(study, networks) if study.by_time else _by_heads(study, networks)
    if found.chosen is None:
        return found
    chosen = found.path[found.chosen]
    if not study.by_time:
        assert found.intact_held_out is not None
        assert chosen.held_out is not None
        intact, own = networks.paces([chosen.structure])
        path = [replace(point, pace=own) if point is chosen else point for point in found.path]
        rivals = compete(study, found.intact_held_out, chosen.structure.heads, chosen.held_out)
        return replace(found, path=path, intact_pace=intact, rivals=rivals)
    if study.recover_minutes:
        recovered = recover(networks, chosen.structure, study.recover_minutes)
        if recovered.held_out is not None and found.intact_held_out is not None:
            (verdict,) = _tested(study, found.intact_held_out, [recovered.held_out])
            recovered = replace(recovered, verdict=verdict)
        return replace(found, recovered=recovered)
    return found


def _by_heads(study: Study, networks: Networks) -> Found:
    """Order the heads by full Fisher information, and keep fewer and fewer."""
    held = held_heads(study.classifier)
    gradients = _gradients(study).heads
    order = plans.fisher_order(gradients, held)
    sizes = {round(share * len(held)) for share in study.effort.shares} - {0, len(held)}
    path = [(OURS, _without(study, order, size)) for size in sorted(sizes, reverse=True)]
    named = [
        (MICHEL, plans.michel_order(gradients, held)),
        (MAGNITUDE, plans.magnitude_order(study.classifier, held)),
        *((RANDOM, plans.random_order(held, study.seed + number)) for number in range(study.effort.orders)),
    ]
    compared = [round(share * len(held)) for share in COMPARED_KEPT]
    baselines = [(name, _without(study, order, size)) for name, order in named for size in compared]
    return _evaluated(study, networks, path, baselines)


def _without(study: Study, order: Heads, size: int) -> Structure:
    """Return the structure that keeps the last `size` heads of an order."""
    whole = Structure.whole(study.classifier.config)
    return replace(whole, heads=weights_without(order[: len(order) - size], study.shape))


def _by_time(study: Study, networks: Networks) -> Found:
    """Fit the network of least loss into less and less time."""
    clf, what, wanted = study.classifier, study.what, study.speedup
    times = measure_times(networks)
    planner = plans.by_fisher(clf.config, times, what, _gradients(study))
    whole = planner.whole_seconds
    speedups = sorted({*SPEEDUPS, *((wanted,) if wanted else ())})
    layer_order = _layer_order(networks, planner, speedups[-1]) if LAYERS in what else []
    best = [(speedup, _best(networks, planner, layer_order, speedup)) for speedup in speedups]
    planned = {speedup: structure for speedup, structure in best if structure is not None}
    needed = wanted or speedups[0]
    if needed not in planned:
        raise ModelError(
            f"no network is {needed:g} times as fast without some {' and '.join(what)}: embeddings "
            f"and classifier alone take {times.other / whole:.0%} of the time"
        )
    path = [(TIMED, structure) for structure in planned.values()]
    baselines = [
        (name, structure)
        for speedup in planned
        if speedup in COMPARED_SPEEDUPS or speedup == wanted
        for name, structure in _rival_plans(study, planner, whole / speedup)
        if structure is not None
    ]
    found = _evaluated(study, networks, path, baselines)
    intact_pace, *paces = networks.paces([structure for _, structure in path])
    points = [
        replace(
            point,
            planned=speedup,
            predicted=whole / planner.seconds(point.structure),
            pace=pace,
            divergence=networks.divergence(point.structure),
        )
        for point, speedup, pace in zip(found.path, planned, paces, strict=True)
    ]
    others = [replace(one, predicted=whole / planner.seconds(one.structure)) for one in found.baselines]
    chosen = found.chosen if wanted is None else list(planned).index(wanted)
    return replace(
        found, path=points, baselines=others, chosen=chosen, intact_pace=intact_pace, times=times,
        layer_order=tuple(layer_order),
    )  # fmt: skip


def _rival_plans(study: Study, planner: Planner, seconds: float) -> list[tuple[str, Structure | None]]:
    """Return the networks of the other methods that take as long."""
    made: list[tuple[str, Structure | None]] = []
    if LAYERS in study.what:
        made.append((TOP, plans.without_top_layers(planner, seconds)))
    if {HEADS, UNITS} & set(study.what):
        magnitude = plans.by_magnitude(study.classifier, planner.times, study.what)
        made.append((MAGNITUDE, magnitude.fitting(seconds)))
        made += [(RANDOM, plans.at_random(planner, seconds, study.seed + i)) for i in range(RANDOM_SEEDS)]
    return made


def _gradients(study: Study) -> Gradients:
    rows = spread_over_queries(study.data.query_of, GRADIENT_PAIRS, study.seed)
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("gradients", len(encoded))
    network = DifferentiableNetwork(study.classifier)
    return network.gradients(encoded, study.data.grade[rows], done=study.progress.advance)


def _layer_order(networks: Networks, planner: Planner, fastest: float) -> list[tuple[int, float]]:
    """Drop layers one at a time, always the one without which the grades change least; stop where whole
    layers alone make the fastest network that is wanted."""
    config, order = planner.config, list[tuple[int, float]]()
    whole = Structure.whole(config)
    left = [layer for layer in range(config.num_layers) if is_removable(config, layer)]
    while left and len(order) < config.num_layers - 1:
        gone = frozenset(layer for layer, _ in order)
        if planner.seconds(replace(whole, skipped=gone)) <= planner.whole_seconds / fastest:
            break
        divergences = {one: networks.divergence(replace(whole, skipped=gone | {one})) for one in left}
        # Of layers that change nothing at all, the last goes first.
        layer = min(left, key=lambda one: (max(divergences[one], SAME), -one))
        order.append((layer, divergences[layer]))
        left.remove(layer)
    return order


def _best(
    networks: Networks, planner: Planner, order: Sequence[tuple[int, float]], speedup: float
) -> Structure | None:
    """Return the structure that changes the grades least, over the numbers of layers dropped; of several
    that change nothing, the fastest. None if nothing is as fast as wanted."""
    candidates = []
    for count in range(len(order) + 1):
        gone = [layer for layer, _ in order[:count]]
        structure = planner.fitting(planner.whole_seconds / speedup, gone)
        if structure is not None:
            candidates.append(structure)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return min(candidates, key=lambda one: (max(networks.divergence(one), SAME), planner.seconds(one)))


def _evaluated(
    study: Study,
    networks: Networks,
    path: Sequence[tuple[str, Structure]],
    baselines: Sequence[tuple[str, Structure]],
) -> Found:
    """Evaluate the networks, and test those of the path from large to small."""
    ones = [study.classifier.all_heads.matrix]
    structures = [structure for _, structure in (*path, *baselines)]
    qualities = networks.evaluate(structures, study.runner, "networks on the search data")
    points = [
        Point(name, structure, quality)
        for (name, structure), quality in zip((*path, *baselines), qualities, strict=True)
    ]
    (intact,) = study.runner.evaluate(ones, "the intact model")
    own, others = points[: len(path)], points[len(path) :]
    if study.holdout_runner is None:
        return Found(intact, None, own, others, [], None)
    (intact_held_out,) = study.holdout_runner.evaluate(ones, "the intact model")
    held_out = networks.evaluate(
        [point.structure for point in own], study.holdout_runner, "networks on the held-out queries"
    )
    own = [replace(point, held_out=quality) for point, quality in zip(own, held_out, strict=True)]
    verdicts = _tested(study, intact_held_out, held_out)
    passed = [index for index, verdict in enumerate(verdicts) if verdict.passed]
    return Found(intact, intact_held_out, own, others, verdicts, passed[-1] if passed else None)


def _tested(study: Study, intact: Evaluation, others: Sequence[Evaluation]) -> list[Verdict]:
    """Return the verdicts on networks, in the order tested."""
    assert study.holdout is not None
    resamples = Resamples(study.holdout, study.resamples, study.seed)
    whole, queries = resamples.draws(intact), len(study.holdout.queries)
    losses = [
        compare(resamples, whole, other, margin=study.margin, alpha=ERROR_RATE, queries=queries)
        for other in others
    ]
    return fixed_sequence(losses, study.margin)
