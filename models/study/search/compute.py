"""The best network for each number of heads kept, or for each speed, and the smallest that passes a test on
other queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.compress.structure import whole as whole_mask
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.quality.evaluation import Evaluation
from models.study.base import held_heads, weights_without
from models.study.gradients import DifferentiableNetwork, Gradients
from models.study.inputs import spread_over_queries
from models.study.search import plans
from models.study.search.networks import Networks, Pace
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.plans import LAYERS, Planner
from models.study.search.recovery import Recovered, recover
from models.study.search.times import is_removable, measure_times
from models.study.statistics import Resamples
from models.study.study import Study

GRADIENT_PAIRS = 2_048
SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
ERROR_RATE = 0.025
"""The chance that a mask worse than the margin is chosen."""
SAME = 1e-6
"""Divergences up to this are rounding."""


@dataclass(frozen=True)
class Point:
    """One network. planned: the speed that it was planned for, None if heads were counted; predicted: by
    the times. quality: on the search data; held_out: on the held-out queries; pace: as measured."""

    mask: HeadMask
    quality: Evaluation
    planned: float | None = None
    predicted: float | None = None
    held_out: Evaluation | None = None
    pace: Pace | None = None


@dataclass(frozen=True)
class Found:
    """The networks that the search made, from large to small, and the tests of them.

    verdicts: on each of `path`. chosen: the index in `path` of the smallest that passed, or of the wanted
    speed. random: on the held-out queries, networks that keep as many heads and units of each layer as the
    chosen one, drawn at random.
    """

    intact: Evaluation
    intact_held_out: Evaluation | None
    path: list[Point]
    verdicts: list[Verdict]
    chosen: int | None
    intact_pace: Pace | None = None
    random: tuple[Evaluation, ...] = ()
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
        intact, own = networks.paces([chosen.mask])
        path = [replace(point, pace=own) if point is chosen else point for point in found.path]
        found = replace(found, path=path, intact_pace=intact)
    if study.holdout_runner is not None:
        others = [
            plans.shuffled(chosen.mask, study.classifier.config, study.seed + number)
            for number in range(study.effort.orders)
        ]
        random = networks.evaluate(others, study.holdout_runner, "random networks of the same layers")
        found = replace(found, random=tuple(random))
    if study.recover_minutes:
        recovered = recover(networks, chosen.mask, study.recover_minutes)
        if recovered.held_out is not None and found.intact_held_out is not None:
            (verdict,) = _tested(study, found.intact_held_out, [recovered.held_out])
            recovered = replace(recovered, verdict=verdict)
        return replace(found, recovered=recovered)
    return found


def _by_heads(study: Study, networks: Networks) -> Found:
    """Order the heads by full Fisher information, and keep fewer and fewer."""
    held = held_heads(study.classifier)
    order = plans.fisher_order(_gradients(study).heads, held)
    sizes = {round(share * len(held)) for share in study.effort.shares} - {0, len(held)}
    whole = whole_mask(study.classifier.config)
    path = [
        whole * HeadMask(weights_without(order[: len(order) - size], study.shape))
        for size in sorted(sizes, reverse=True)
    ]
    return _evaluated(study, networks, path)


def _by_time(study: Study, networks: Networks) -> Found:
    """Fit the network of least loss into less and less time."""
    clf, what, wanted = study.classifier, study.what, study.speedup
    times = measure_times(networks)
    planner = Planner.of(clf.config, times, what, _gradients(study))
    whole = planner.whole_seconds
    speedups = sorted({*SPEEDUPS, *((wanted,) if wanted else ())})
    layer_order = _layer_order(networks, planner, speedups[-1]) if LAYERS in what else []
    best = [(speedup, _best(networks, planner, layer_order, speedup)) for speedup in speedups]
    planned = {speedup: mask for speedup, mask in best if mask is not None}
    needed = wanted or speedups[0]
    if needed not in planned:
        most = whole / planner.least_seconds(layer_order)
        raise ModelError(
            f"no network is {needed:g} times as fast without some {' and '.join(what)}: {most:.2f} times at "
            "most, by times measured now. Ask for less, let more go (--what), or measure on an idle machine"
        )
    path = list(planned.values())
    found = _evaluated(study, networks, path)
    intact_pace, *paces = networks.paces(path)
    points = [
        replace(point, planned=speedup, predicted=whole / planner.seconds(point.mask), pace=pace)
        for point, speedup, pace in zip(found.path, planned, paces, strict=True)
    ]
    chosen = found.chosen if wanted is None else list(planned).index(wanted)
    return replace(found, path=points, chosen=chosen, intact_pace=intact_pace)


def _gradients(study: Study) -> Gradients:
    rows = spread_over_queries(study.data.query_of, GRADIENT_PAIRS, study.seed)
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("gradients", len(encoded))
    network = DifferentiableNetwork(study.classifier)
    return network.gradients(encoded, study.data.grade[rows], done=study.progress.advance)


def _layer_order(networks: Networks, planner: Planner, fastest: float) -> list[int]:
    """Drop layers one at a time, always the one without which the grades change least; stop where whole
    layers alone make the fastest network that is wanted."""
    config, order = planner.config, list[int]()
    whole = whole_mask(config)
    left = [layer for layer in range(config.num_layers) if is_removable(config, layer)]
    while left and len(order) < config.num_layers - 1:
        gone = tuple(order)
        if planner.seconds(replace(whole, skipped=gone)) <= planner.whole_seconds / fastest:
            break
        divergences = {one: networks.divergence(replace(whole, skipped=(*gone, one))) for one in left}
        # Of layers that change nothing at all, the last goes first.
        layer = min(left, key=lambda one: (max(divergences[one], SAME), -one))
        order.append(layer)
        left.remove(layer)
    return order


def _best(networks: Networks, planner: Planner, order: Sequence[int], speedup: float) -> HeadMask | None:
    """Return the mask that changes the grades least, over the numbers of layers dropped; of several
    that change nothing, the fastest. None if nothing is as fast as wanted."""
    candidates = []
    for count in range(len(order) + 1):
        mask = planner.fitting(planner.whole_seconds / speedup, order[:count])
        if mask is not None:
            candidates.append(mask)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return min(candidates, key=lambda one: (max(networks.divergence(one), SAME), planner.seconds(one)))


def _evaluated(study: Study, networks: Networks, path: Sequence[HeadMask]) -> Found:
    """Evaluate the networks, and test them from large to small."""
    ones = [study.classifier.all_heads.matrix]
    qualities = networks.evaluate(path, study.runner, "networks on the search data")
    points = [Point(mask, quality) for mask, quality in zip(path, qualities, strict=True)]
    (intact,) = study.runner.evaluate(ones, "the intact model")
    if study.holdout_runner is None:
        return Found(intact, None, points, [], None)
    (intact_held_out,) = study.holdout_runner.evaluate(ones, "the intact model")
    held_out = networks.evaluate(path, study.holdout_runner, "networks on the held-out queries")
    points = [replace(point, held_out=quality) for point, quality in zip(points, held_out, strict=True)]
    verdicts = _tested(study, intact_held_out, held_out)
    passed = [index for index, verdict in enumerate(verdicts) if verdict.passed]
    return Found(intact, intact_held_out, points, verdicts, passed[-1] if passed else None)


def _tested(study: Study, intact: Evaluation, others: Sequence[Evaluation]) -> list[Verdict]:
    """Return the verdicts on networks, in the order tested."""
    assert study.holdout is not None
    resamples = Resamples(study.holdout, study.effort.resamples, study.seed)
    whole, queries = resamples.draws(intact), len(study.holdout.queries)
    losses = [
        compare(resamples, whole, other, margin=study.margin, alpha=ERROR_RATE, queries=queries)
        for other in others
    ]
    return fixed_sequence(losses, study.margin)
