"""The best network for each speed: heads, feed-forward units and whole layers go, by measured time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.checkpoint.families import FAMILIES
from models.compress.structure import Structure
from models.errors import ModelError
from models.quality.evaluation import Evaluation
from models.study.gradients import DifferentiableNetwork
from models.study.inputs import check_apart, spread_over_queries
from models.study.latency import LatencyTable, read_table
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.structured import plans
from models.study.search.structured.gates import Gradients, gradients
from models.study.search.structured.plans import LAYERS, Planner
from models.study.search.structured.recovery import Recovered, from_scratch, recover
from models.study.search.structured.speed import Pace, paces
from models.study.search.structured.tuning import tuned
from models.study.search.structured.workshop import Workshop
from models.study.statistics import Resamples
from models.study.study import Study
from models.study.timing import mean_length, measure

SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
GRADIENT_PAIRS = 2_048
TUNING_PAIRS = 128
BASELINE_SPEEDUPS = (1.5, 2.0, 3.0)
RANDOM_SEEDS = 3
ERROR_RATE = 0.05
"""The error rate of the tests: half for plain networks, half for tuned ones; a recovered one's is extra."""

SAME = 1e-6
"""Divergences up to this are rounding."""

OURS, TUNED = "Fisher and measured times", "Fisher and measured times, tuned"
MAGNITUDE, TOP, RANDOM = "magnitude", "top layers dropped", "random"


@dataclass(frozen=True)
class Point:
    """One network. speedup: what it was planned for; predicted: by the table. quality: on the search data;
    held_out: on the held-out queries; pace: as measured; divergence: from the intact model, on a sample."""

    method: str
    speedup: float
    structure: Structure
    predicted: float
    quality: Evaluation
    held_out: Evaluation | None = None
    pace: Pace | None = None
    divergence: float | None = None


@dataclass(frozen=True)
class Found:
    """The networks of all methods and the tests of them, from slow to fast.

    layer_order: the layers in the order in which they go, and the divergence without those so far.
    seconds: how long the search took, without measuring the table, the path's speed and recovery.
    """

    table: LatencyTable
    planner: Planner
    what: tuple[str, ...]
    intact: Evaluation
    intact_held_out: Evaluation | None
    path: list[Point]
    tuned: list[Point]
    baselines: list[Point]
    verdicts: list[Verdict]
    tuned_verdicts: list[Verdict]
    layer_order: list[tuple[int, float]]
    intact_pace: Pace | None
    wanted: float | None
    seconds: float
    recovered: Recovered | None = None
    from_scratch: Recovered | None = None

    @property
    def chosen(self) -> int | None:
        """Return the place in `path` of the wanted speed; without one, of the fastest that passed."""
        return _chosen(self.path, self.verdicts, self.wanted)

    @property
    def chosen_tuned(self) -> int | None:
        """Return the same of `tuned`."""
        return _chosen(self.tuned, self.tuned_verdicts, self.wanted)


def search(study: Study) -> Found:
    """Find the networks on `data` and test them on `holdout`. Raises ModelError if the two share a query."""
    if study.holdout is not None:
        check_apart(study.data, study.holdout)
    clf, what, wanted = study.classifier, study.what, study.speedup
    if clf.config.int8 and study.recover_minutes:
        raise ModelError(f"{clf.name} is int8, and 8-bit weights cannot be trained; recover the float model")
    table = _table(study)
    started = time.perf_counter()
    workshop = Workshop(study)
    planner = plans.by_fisher(clf.config, table, what, _gradients(study))
    speedups = sorted({*SPEEDUPS, *((wanted,) if wanted else ())})
    study.progress.start("candidates on a sample", candidate_count(clf.num_layers, what, len(speedups)))
    order = _layer_order(study, workshop, planner, speedups[-1]) if LAYERS in what else []
    chosen = [(s, *best) for s in speedups if (best := _best(workshop, planner, order, s)) is not None]
    needed = wanted or speedups[0]
    if needed not in [speedup for speedup, _, _ in chosen]:
        raise ModelError(
            f"no network is {needed:g} times as fast without some {' and '.join(what)}: embeddings and "
            f"classifier alone take {table.other[-1] / planner.whole_seconds:.0%} of the time"
        )
    structures = [structure for _, structure, _ in chosen]
    scaled = [] if clf.config.int8 else _tuned(study, structures)

    def points(method: str, made: Sequence[Structure]) -> list[Point]:
        return [
            _point(workshop, planner, method, speedup, structure, held_out=True, divergence=divergence)
            for (speedup, _, divergence), structure in zip(chosen, made, strict=True)
        ]

    compared = [s for s, _, _ in chosen if s in BASELINE_SPEEDUPS or s == wanted]
    halves = 1 if study.holdout is None else 2
    total = halves * (len(structures) + len(scaled)) + (2 + RANDOM_SEEDS) * len(compared)
    study.progress.start("the smaller networks", total)
    path, tuned_path = points(OURS, structures), points(TUNED, scaled) if scaled else []
    baselines = _baselines(study, workshop, planner, compared)
    seconds = time.perf_counter() - started
    intact, intact_held_out = _intact(study)
    measured = paces(study, [workshop.smaller(point.structure) for point in path])
    path = [replace(point, pace=pace) for point, pace in zip(path, measured[1:], strict=True)]
    tuned_path = [replace(point, pace=pace) for point, pace in zip(tuned_path, measured[1:], strict=False)]
    found = Found(
        table, planner, what, intact, intact_held_out, path, tuned_path, baselines,
        _verdicts(study, intact_held_out, path), _verdicts(study, intact_held_out, tuned_path),
        order, measured[0], wanted, seconds,
    )  # fmt: skip
    return _with_training(study, workshop, found)


def candidate_count(layers: int, what: Sequence[str], speedups: int) -> int:
    """Return about how many candidates are compared on a sample."""
    if LAYERS not in what:
        return speedups
    dropped = layers * 3 // 4
    return dropped * layers - dropped**2 // 2 + speedups * (dropped + 1)


def _table(study: Study) -> LatencyTable:
    if study.cost is not None:
        return read_table(study.cost, study.classifier)
    length, rounds = mean_length(study.classifier, study.data), study.effort.rounds
    return measure(study.classifier, sequence_tokens=length, rounds=rounds, progress=study.progress)


def _gradients(study: Study) -> Gradients:
    rows = spread_over_queries(study.data.query_of, GRADIENT_PAIRS, study.seed)
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("gradients of heads, units and layers", len(encoded))
    network = DifferentiableNetwork(study.classifier)
    return gradients(network, encoded, study.data.grade[rows], done=study.progress.advance)


def _layer_order(
    study: Study, workshop: Workshop, planner: Planner, fastest: float
) -> list[tuple[int, float]]:
    """Drop layers one at a time, always the one without which the grades change least; stop where whole
    layers alone make the fastest network that is wanted."""
    config, order = study.classifier.config, list[tuple[int, float]]()
    whole = Structure.whole(config)
    left = [layer for layer in range(config.num_layers) if _removable(config.family, layer)]
    while left and len(order) < config.num_layers - 1:
        gone = [layer for layer, _ in order]
        if planner.seconds(replace(whole, skipped=frozenset(gone))) <= planner.whole_seconds / fastest:
            break
        divergences = {
            layer: workshop.divergence(replace(whole, skipped=frozenset([*gone, layer]))) for layer in left
        }
        # Of layers that change nothing at all, the last goes first.
        layer = min(left, key=lambda one: (max(divergences[one], SAME), -one))
        order.append((layer, divergences[layer]))
        left.remove(layer)
    return order


def _removable(family: str, layer: int) -> bool:
    try:
        FAMILIES[family].check_removable([layer])
    except ModelError:
        return False
    return True


def _best(
    workshop: Workshop, planner: Planner, order: Sequence[tuple[int, float]], speedup: float
) -> tuple[Structure, float] | None:
    """Return the structure that changes the grades least, over the numbers of layers dropped, and by how
    much; of several that change nothing, the fastest. None if nothing is as fast as wanted."""
    candidates = []
    for count in range(len(order) + 1):
        structure = planner.fitting(planner.whole_seconds / speedup, [layer for layer, _ in order[:count]])
        if structure is not None:
            candidates.append((structure, workshop.divergence(structure)))
    return min(candidates, key=lambda one: (max(one[1], SAME), planner.seconds(one[0])), default=None)


def _tuned(study: Study, structures: Sequence[Structure]) -> list[Structure]:
    rng = np.random.default_rng(study.seed)
    rows = rng.permutation(len(study.data))[:TUNING_PAIRS]
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("tuned scales", len(structures) * study.classifier.num_layers)
    network = DifferentiableNetwork(study.classifier)
    return tuned(network, encoded, structures, done=study.progress.advance)


def _point(
    workshop: Workshop, planner: Planner, method: str, speedup: float, structure: Structure,
    *, held_out: bool = False, divergence: float | None = None,
) -> Point:  # fmt: skip
    study = workshop.study
    return Point(
        method,
        speedup,
        structure,
        planner.whole_seconds / planner.seconds(structure),
        workshop.evaluate(structure, study.data),
        workshop.evaluate(structure, study.holdout) if held_out and study.holdout is not None else None,
        divergence=divergence,
    )


def _baselines(study: Study, workshop: Workshop, planner: Planner, speedups: Sequence[float]) -> list[Point]:
    """Return the networks of the other methods, at the same predicted times."""
    magnitude = plans.by_magnitude(study.classifier, planner.table, study.what)
    whole, points = planner.whole_seconds, []
    for speedup in speedups:
        made = [(MAGNITUDE, magnitude.fitting(whole / speedup))] if magnitude.what else []
        if LAYERS in study.what:
            made.append((TOP, plans.without_top_layers(planner, whole / speedup)))
        if magnitude.what:
            made += [
                (RANDOM, plans.at_random(planner, whole / speedup, study.seed + number))
                for number in range(RANDOM_SEEDS)
            ]
        points += [
            _point(workshop, planner, method, speedup, structure)
            for method, structure in made
            if structure is not None
        ]
    return points


def _intact(study: Study) -> tuple[Evaluation, Evaluation | None]:
    ones = study.classifier.all_heads.matrix
    runner = study.holdout_runner
    return study.runner.evaluate([ones])[0], None if runner is None else runner.evaluate([ones])[0]


def _tested(study: Study, intact: Evaluation, others: Sequence[Evaluation]) -> list[Verdict]:
    """Return the verdicts on networks, in the order tested, each at half of the error rate."""
    assert study.holdout is not None
    resamples = Resamples(study.holdout, study.resamples, study.seed)
    whole, queries = resamples.draws(intact), len(study.holdout.queries)
    losses = [
        compare(resamples, whole, other, margin=study.margin, alpha=ERROR_RATE / 2, queries=queries)
        for other in others
    ]
    return fixed_sequence(losses, study.margin)


def _verdicts(study: Study, intact: Evaluation | None, path: Sequence[Point]) -> list[Verdict]:
    if intact is None:
        return []
    return _tested(study, intact, [point.held_out for point in path if point.held_out is not None])


def _chosen(path: Sequence[Point], verdicts: Sequence[Verdict], wanted: float | None) -> int | None:
    if wanted is not None:
        return next((place for place, point in enumerate(path) if point.speedup == wanted), None)
    passed = [place for place, verdict in enumerate(verdicts) if verdict.passed]
    return passed[-1] if passed else None


def _with_training(study: Study, workshop: Workshop, found: Found) -> Found:
    """Train the chosen network, if that is wanted, and beside it one from random weights."""
    if not study.recover_minutes:
        return found
    place = found.chosen_tuned if found.tuned else found.chosen
    path = found.tuned or found.path
    structure = path[-1 if place is None else place].structure
    recovered = recover(workshop, structure, study.recover_minutes)
    if recovered.held_out is not None and found.intact_held_out is not None:
        (verdict,) = _tested(study, found.intact_held_out, [recovered.held_out])
        recovered = replace(recovered, verdict=verdict)
    scratch = from_scratch(workshop, structure, study.recover_minutes)
    return replace(found, recovered=recovered, from_scratch=scratch)
