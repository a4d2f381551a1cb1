"""The best network for each number of heads kept, or for each speed, and the smallest that passes a test on
other queries."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headroom.models.checkpoint.families import removable_layers
from headroom.models.errors import ModelError
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.bootstrap import resample
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.noninferiority import (
    RESAMPLES,
    SEED,
    NonInferiority,
    fixed_sequence,
    non_inferiority,
)
from headroom.models.study.search import plans
from headroom.models.study.search.networks import Networks, Pace, measure_times
from headroom.models.study.search.plans import Gradients, Planner, gradients
from headroom.models.study.study import Study

GRADIENT_PAIRS = 2_048
SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
SAME = 1e-6
"""Divergences up to this are rounding."""


@dataclass(eq=False)
class Candidate:
    """A network to try, and its measurements."""

    mask: HeadMask
    speedup: float | None = None  # the one that it was planned for; None if heads were counted
    predicted: float | None = None  # the one that the times predict
    quality: Evaluation = field(init=False)  # on the search data
    held_out: Evaluation | None = None  # on the held-out queries, if there are any
    test: NonInferiority | None = None
    pace: Pace | None = None  # if it was measured


@dataclass(frozen=True)
class SearchResult:
    """The networks that the search made."""

    intact: Candidate  # not tested
    candidates: list[Candidate]  # the others, from large to small
    chosen: Candidate | None  # the smallest that passed, or that of the wanted speed
    random: Sequence[Evaluation]  # held out: networks that keep as much of each layer, drawn at random

    @property
    def best_that_passed(self) -> Candidate | None:
        """Return the smallest network that passed, whether or not it is as fast as wanted."""
        return _smallest_that_passed(self.candidates)


def measure(study: Study) -> SearchResult:
    """Find the networks on `data` and test them on `holdout`, whose queries are others (`check_apart`).

    Raises ModelError if no network is as fast as wanted.
    """
    networks = Networks(study)
    planned = _by_time(study, networks) if study.by_time else _by_heads(study)
    intact = Candidate(study.classifier.config.intact_mask)
    tried = [intact, *planned]
    masks = [one.mask for one in tried]
    for one, quality in zip(tried, networks.evaluate(study.data, masks, "search data"), strict=True):
        one.quality = quality
    if study.holdout is not None:
        _judge(study, tried, networks.evaluate(study.holdout, masks, "held-out queries"))
    chosen = _choose(planned, study.speedup)
    timed = tried
    if not study.by_time:
        timed = [] if chosen is None else [intact, chosen]
    for one, pace in zip(timed, networks.paces([one.mask for one in timed]), strict=True):
        one.pace = pace
    random = [] if chosen is None else _random_networks(networks, chosen.mask)
    return SearchResult(intact, planned, chosen, random)


def _random_networks(networks: Networks, mask: HeadMask) -> list[Evaluation]:
    """Evaluate random networks that keep as much of each layer on the held-out queries, if there are any."""
    study = networks.study
    if study.holdout is None:
        return []
    seeds = range(study.seed, study.seed + study.effort.random_networks)
    others = [plans.shuffled(mask, study.classifier.config, seed) for seed in seeds]
    return networks.evaluate(study.holdout, others, "random networks of the same layers")


def _judge(study: Study, tried: list[Candidate], held_out: list[Evaluation]) -> None:
    """Test all but the first, the intact model, on held-out queries in their order."""
    outcomes = fixed_sequence(tests_of(held_out[0], held_out[1:], study.margin))
    for one, evaluation, test in zip(tried, held_out, [None, *outcomes], strict=True):
        one.held_out = evaluation
        one.test = test


def tests_of(intact: Evaluation, smaller: Sequence[Evaluation], margin: float) -> list[NonInferiority]:
    """Test networks against the intact one on the same queries, as `headroom evaluate` does."""
    counts = resample(intact.clusters, RESAMPLES, SEED)
    before = intact.draws(counts, intact.of_sums)
    return [
        non_inferiority(intact, before, one.draws(counts, one.of_sums), counts, margin) for one in smaller
    ]


def _choose(planned: list[Candidate], speedup: float | None) -> Candidate | None:
    """Return the network of the wanted speed; if none is wanted, the smallest that passed."""
    if speedup is not None:
        return next(one for one in planned if one.speedup == speedup)
    return _smallest_that_passed(planned)


def _smallest_that_passed(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the last network that passed, of networks from large to small."""
    passed = [one for one in candidates if one.test is not None and one.test.passed]
    return passed[-1] if passed else None


def _by_heads(study: Study) -> list[Candidate]:
    """Order the heads by full Fisher information, and keep fewer and fewer."""
    order = plans.fisher_order(_gradients(study).heads, study.heads)
    sizes = {round(share * len(order)) for share in study.effort.shares} - {0, len(order)}
    whole = study.classifier.config.intact_mask
    return [
        Candidate(whole * HeadMask(study.without(order[: len(order) - size])))
        for size in sorted(sizes, reverse=True)
    ]


def _by_time(study: Study, networks: Networks) -> list[Candidate]:
    """Fit the network of least loss into less and less time."""
    config = study.classifier.config
    planner = Planner.of(config, measure_times(networks), study.what, _gradients(study))
    intact_seconds = planner.seconds(config.intact_mask)
    speedups = sorted({*SPEEDUPS, study.speedup or SPEEDUPS[0]})
    layer_order = _layer_order(networks, planner, speedups[-1]) if "layers" in study.what else []
    best = {speedup: _best(networks, planner, layer_order, intact_seconds / speedup) for speedup in speedups}
    wanted = study.speedup or speedups[0]
    if best[wanted] is None:
        maximum = intact_seconds / planner.minimum_seconds(layer_order)
        raise ModelError(
            f"no network is {wanted:g} times as fast without some {' and '.join(study.what)}: {maximum:.2f} "
            "times at most, by times measured now. Ask for less, let more go (--what), or measure on an idle "
            "machine"
        )
    return [
        Candidate(mask, speedup, intact_seconds / planner.seconds(mask))
        for speedup, mask in best.items()
        if mask is not None
    ]


def _gradients(study: Study) -> Gradients:
    rows = study.data.spread(GRADIENT_PAIRS, study.seed)
    encoded = study.encode(rows)
    study.progress.start("gradients", len(encoded))
    return gradients(study.classifier, encoded, study.data.grade[rows], done=study.progress.advance)


def _layer_order(networks: Networks, planner: Planner, fastest: float) -> list[int]:
    """Drop layers one at a time, always the one without which the answers change least; stop where whole
    layers alone make the fastest network that is wanted."""
    config = planner.config
    whole = config.intact_mask
    limit = planner.seconds(whole) / fastest
    order: list[int] = []
    remaining = removable_layers(config)
    while remaining and len(order) < config.num_layers - 1:
        if planner.seconds(replace(whole, skipped=tuple(order))) <= limit:
            break
        divergence = {
            layer: max(networks.divergence(replace(whole, skipped=(*order, layer))), SAME)
            for layer in remaining
        }
        # Of layers that change nothing at all, the last goes first.
        order.append(min(remaining, key=lambda layer: (divergence[layer], -layer)))
        remaining.remove(order[-1])
    return order


def _best(networks: Networks, planner: Planner, order: Sequence[int], seconds: float) -> HeadMask | None:
    """Return the mask that changes the answers least, over the numbers of layers dropped; of several
    that change nothing, the fastest. None if none takes at most `seconds`."""
    fitting = (planner.fitting(seconds, order[:count]) for count in range(len(order) + 1))
    candidates = [mask for mask in fitting if mask is not None]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return min(candidates, key=lambda one: (max(networks.divergence(one), SAME), planner.seconds(one)))
