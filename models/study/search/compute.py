"""The best network for each number of heads kept, or for each speed, and the smallest that passes a test on
other queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.compress.prune import whole as whole_mask
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.quality.evaluation import Evaluation
from models.study.base import held_heads, weights_without
from models.study.gradients import Gradients, gradients
from models.study.inputs import spread_over_queries
from models.study.runner import Runner
from models.study.search import plans
from models.study.search.networks import Networks, Pace
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.plans import LAYERS, Planner
from models.study.search.recovery import Student, recover
from models.study.search.times import is_removable, measure_times
from models.study.statistics import Resamples
from models.study.study import Study

GRADIENT_PAIRS = 2_048
SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
SAME = 1e-6
"""Divergences up to this are rounding."""


@dataclass(frozen=True)
class Plan:
    """A network to try. speedup: the one that it was planned for, None if heads were counted; predicted: the
    one that the times predict."""

    mask: HeadMask
    speedup: float | None = None
    predicted: float | None = None


@dataclass(frozen=True)
class Tested:
    """The quality of a network on the search data; on the held-out queries; and the verdict on the latter."""

    quality: Evaluation
    held_out: Evaluation | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Found:
    """The networks that the search made, from large to small.

    tested: of each of `plans`; paces: of those that were timed, by index. chosen: the index of the smallest
    that passed, or of the wanted speed. random: on the held-out queries, networks that keep as many heads and
    units of each layer as the chosen one, drawn at random. recovered: the chosen network after its training.
    """

    plans: list[Plan]
    intact: Tested
    tested: list[Tested]
    chosen: int | None
    paces: dict[int, Pace]
    intact_pace: Pace | None
    random: tuple[Evaluation, ...] = ()
    recovered: Student | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts, in the order tested; none without held-out queries."""
        return [one.verdict for one in self.tested if one.verdict is not None]


def measure(study: Study) -> Found:
    """Find the networks on `data` and test them on `holdout`, whose queries are others (`check_apart`).

    Raises ModelError if no network is as fast as wanted.
    """
    clf = study.classifier
    if clf.config.int8 and study.recover_minutes:
        raise ModelError(f"{clf.name} is int8, and 8-bit weights cannot be trained; recover the float model")
    networks = Networks(study)
    path = _by_time(study, networks) if study.by_time else _by_heads(study)
    masks = [plan.mask for plan in path]
    intact, *tested = _tested(
        study,
        _with_intact(networks, masks, study.runner, "networks on the search data"),
        _with_intact(networks, masks, study.holdout_runner, "networks on the held-out queries"),
    )
    passed = [index for index, one in enumerate(tested) if one.verdict is not None and one.verdict.passed]
    chosen = passed[-1] if passed else None
    if study.speedup is not None:
        chosen = [plan.speedup for plan in path].index(study.speedup)
    timed = range(len(path)) if study.by_time else passed[-1:]
    intact_pace, paces = None, dict[int, Pace]()
    if timed:
        intact_pace, *measured = networks.paces([masks[index] for index in timed])
        paces = dict(zip(timed, measured, strict=True))
    found = Found(path, intact, tested, chosen, paces, intact_pace)
    if chosen is None:
        return found
    if study.holdout_runner is not None:
        others = [
            plans.shuffled(masks[chosen], clf.config, study.seed + n) for n in range(study.effort.orders)
        ]
        random = networks.evaluate(others, study.holdout_runner, "random networks of the same layers")
        found = replace(found, random=tuple(random))
    if study.recover_minutes:
        found = replace(found, recovered=recover(networks, masks[chosen], study.recover_minutes))
    return found


def _by_heads(study: Study) -> list[Plan]:
    """Order the heads by full Fisher information, and keep fewer and fewer."""
    held = held_heads(study.classifier)
    order = plans.fisher_order(_gradients(study).heads, held)
    sizes = {round(share * len(held)) for share in study.effort.shares} - {0, len(held)}
    whole = whole_mask(study.classifier.config)
    return [
        Plan(whole * HeadMask(weights_without(order[: len(order) - size], study.shape)))
        for size in sorted(sizes, reverse=True)
    ]


def _by_time(study: Study, networks: Networks) -> list[Plan]:
    """Fit the network of least loss into less and less time."""
    what, wanted = study.what, study.speedup
    planner = Planner.of(study.classifier.config, measure_times(networks), what, _gradients(study))
    whole = planner.whole_seconds
    speedups = sorted({*SPEEDUPS, *((wanted,) if wanted else ())})
    layer_order = _layer_order(networks, planner, speedups[-1]) if LAYERS in what else []
    best = {speedup: _best(networks, planner, layer_order, speedup) for speedup in speedups}
    needed = wanted or speedups[0]
    if best[needed] is None:
        most = whole / planner.least_seconds(layer_order)
        raise ModelError(
            f"no network is {needed:g} times as fast without some {' and '.join(what)}: {most:.2f} times at "
            "most, by times measured now. Ask for less, let more go (--what), or measure on an idle machine"
        )
    return [
        Plan(mask, speedup, whole / planner.seconds(mask))
        for speedup, mask in best.items()
        if mask is not None
    ]


def _gradients(study: Study) -> Gradients:
    rows = spread_over_queries(study.data.query_of, GRADIENT_PAIRS, study.seed)
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("gradients", len(encoded))
    return gradients(study.classifier, encoded, study.data.grade[rows], done=study.progress.advance)


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


def _with_intact(
    networks: Networks, masks: Sequence[HeadMask], runner: Runner | None, what: str
) -> list[Evaluation]:
    """Return the quality of the intact model and of the networks; nothing without a runner."""
    if runner is None:
        return []
    ones = [networks.study.classifier.all_heads.matrix]
    return [*runner.evaluate(ones, "the intact model"), *networks.evaluate(masks, runner, what)]


def _tested(study: Study, qualities: Sequence[Evaluation], held_out: Sequence[Evaluation]) -> list[Tested]:
    """Test networks on held-out queries, if there are any, in this order. The first one is intact."""
    if study.holdout is None:
        return [Tested(quality, None, None) for quality in qualities]
    resamples = Resamples(study.holdout, study.effort.resamples, study.seed)
    whole = resamples.draws(held_out[0])
    losses = [compare(resamples, whole, other, study.margin) for other in held_out[1:]]
    verdicts = [None, *fixed_sequence(losses, study.margin)]
    return [Tested(*one) for one in zip(qualities, held_out, verdicts, strict=True)]
