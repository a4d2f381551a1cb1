"""Estimates how long a study will take from the speed of a first batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.batch import batches_by_length
from models.checkpoint.tokenizer import EncodedPair
from models.device import one_thread
from models.study import runner
from models.study.gradients import DifferentiableNetwork
from models.study.heads import held_heads
from models.study.study import Study
from models.study.wording import layer_range

FIRST_PAIRS = 64
FIRST_MASKS = 3
PLAIN_PAIRS = 16
"""The pairs on which plain float32 is timed: enough to keep the cores busy, few enough to be quick."""


@dataclass(frozen=True)
class Work:
    """Work in forward passes of one pair, by how they are computed; or the seconds that a pass of each takes.

    masked: under a mask, in the checkpoint's number format, while each core computes a part of its own.
    alone: the same on one core, while the others wait. plain: in float32 on plain torch operators, all cores
    on one batch (models.study.gradients). seconds: of work whose length is given.
    """

    masked: float = 0.0
    alone: float = 0.0
    plain: float = 0.0
    seconds: float = 0.0

    def at(self, pace: Work) -> float:
        """Return the seconds that this work takes. pace: the seconds per pass, from `pace_of`."""
        return self.masked * pace.masked + self.alone * pace.alone + self.plain * pace.plain + self.seconds


Stage = tuple[str, Work]
"""A stage as Progress.start names it, and its work."""

# How many passes other work is worth, measured with the shipped model on two cores. Other models and machines
# change it, so the estimate is rough.
GRADIENT = 3.0
"""Per pair, in plain passes: forward and backward."""
TUNING = 1.5
"""Per pair and mask, in plain passes: the scales of the heads."""
TUNING_UNITS = 2.5
"""Per pair and structure, in plain passes: the scales of heads and feed-forward units."""
SMALLER = 20.0
"""Per network, in plain passes: cutting a smaller network out of the checkpoint."""
SHARE = 0.6
"""The part of the intact network's time that a smaller one takes on average."""
ROLES = 14.0
"""Per pair, in plain passes: the attention of all heads and its 999 permutations."""
DISTANCES = 20.0
"""Per pair, in plain passes: the distance of every two heads."""
LIKENESS = 120.0
"""Per layer, in plain passes: the likeness of 1,200 tokens' outputs, whose cost grows with their square."""
STATISTICS = 2.5e-5
"""Per mask, pair and resample, in passes alone: the metrics and their bootstrap."""
TIMED = 64 * 60.0
"""Per round, in single layers' passes on one core: each part of a layer once."""


def stages(kind: str, study: Study) -> list[Stage]:
    """Return the stages of a kind, or of all kinds, in their order."""
    kinds = tuple(_PLANS) if kind == "all" else (kind,)
    return [stage for one in kinds for stage in _PLANS[one](study)]


def pace_of(study: Study, plan: Sequence[Stage]) -> Work:
    """Measure the seconds per pass of each kind that the plan needs, on the study's first pairs."""
    clf = study.classifier
    step = max(len(study.data) // FIRST_PAIRS, 1)
    encoded = clf.tokenizer.encode(study.data.pairs[::step][:FIRST_PAIRS])
    rows = next(batches_by_length([len(pair) for pair in encoded], runner.BATCH_TOKENS))
    first = [encoded[row] for row in rows]
    masks = (np.random.default_rng(0).random((FIRST_MASKS, *study.shape)) < 0.5).astype(np.float32)
    cores = torch.get_num_threads() if clf.network.device.type == "cpu" else 1
    with one_thread():
        took = _second_time(lambda: runner.logits_of(clf, first, masks))
    alone = took / (len(first) * len(masks))
    plain = _plain_pace(study, encoded) if any(work.plain for _, work in plan) else 0.0
    return Work(masked=alone / cores, alone=alone, plain=plain)


def _plain_pace(study: Study, encoded: Sequence[EncodedPair]) -> float:
    network = DifferentiableNetwork(study.classifier)
    batch = next(network.batches(encoded[:: FIRST_PAIRS // PLAIN_PAIRS]))
    gates = torch.ones(batch.rows, *study.shape, device=network.device)
    with torch.inference_mode():
        return _second_time(lambda: network.logits(batch, gates).numpy(force=True)) / batch.rows


def _second_time(compute: Callable[[], object]) -> float:
    """Return the seconds that the second call takes; the first also sets things up."""
    compute()
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started


def _single(study: Study) -> list[Stage]:
    heads, layers = len(held_heads(study.classifier)), study.shape[0]
    shared = (layers + 1) / 2 / layers  # the pass under a mask starts at the layer of its head
    return [
        ("single heads", Work(masked=heads * shared * len(study.data))),
        ("intervals of single heads", _statistics(study, heads)),
    ]


def _random(study: Study) -> list[Stage]:
    layers = study.shape[0]
    masks = study.effort.draws * (study.effort.fractions - 1)
    stages = []
    halves = [(range(layers), 1.0)]
    if layers > 1:
        halves += [(range(layers // 2), 1.0), (range(layers // 2, layers), 0.5)]
    for chosen, share in halves:
        name = layer_range(chosen)
        stages.append((f"random heads of layers {name}", Work(masked=masks * share * len(study.data))))
        stages.append((f"bands of layers {name}", _statistics(study, masks)))
    return stages


def _statistics(study: Study, masks: int) -> Work:
    return Work(alone=masks * len(study.data) * study.resamples * STATISTICS)


def _layers(study: Study) -> list[Stage]:
    layers, pairs = study.shape[0], len(study.data)
    alike = Work(
        alone=(layers + 1) * min(400, pairs),
        plain=(layers + 1) * LIKENESS * (study.effort.tokens / 1200) ** 2,
    )
    return [("whole layers", Work(masked=2 * layers * pairs)), ("outputs of later layers", alike)]


def _roles(study: Study) -> list[Stage]:
    pairs = min(study.effort.role_pairs, len(study.data))
    tried = 6 * study.effort.role_sets * min(600, len(study.data))
    return [
        ("attention of every head", Work(plain=pairs * ROLES)),
        ("heads of a role off, and random ones", Work(masked=tried)),
    ]


def _similarity(study: Study) -> list[Stage]:
    pairs = min(study.effort.compared_pairs, len(study.data)) * DISTANCES
    return [
        ("attention of every two heads", Work(plain=pairs)),
        ("probes", Work(masked=3 * (study.shape[0] + 1) * 100)),
    ]


def _words(study: Study) -> list[Stage]:
    layers = study.shape[0]
    shared = 1 + (layers + 1) / 2  # the pass under a mask starts at the layer that is off
    titles = len(study.data) / max(len(study.data.queries), 1)
    queries = min(study.effort.condensed_queries, len(study.data.queries))
    words = [min(len(text.split()), 20) for text in study.data.queries]
    texts = 1 + sum(words) / max(len(words), 1)
    return [
        ("words left out", Work(masked=queries * titles * texts * shared)),
        ("condensed queries", Work(masked=queries * titles * 3)),
    ]


def _search(study: Study) -> list[Stage]:
    pairs = len(study.data)
    if study.by_time:
        return _search_by_time(study)
    sizes, orders = len(study.effort.shares), study.effort.orders
    stages = [
        ("gradients of the mask", Work(plain=pairs * GRADIENT)),
        ("tuned scales", Work(plain=(1 + sizes) * min(128, pairs) * TUNING)),
        ("masks on the search data", Work(masked=(1 + 2 * sizes + 20 + 4 * orders) * pairs)),
    ]
    if study.holdout is not None:
        held_out = len(study.holdout)
        timed = 4 * 7 * min(256, held_out)
        stages += [
            ("masks on the held-out queries", Work(masked=(1 + 2 * sizes) * held_out)),
            ("rivals of the mask, held out", Work(masked=(1 + 2 * orders) * held_out)),
            ("speed", Work(masked=2 * timed)),  # all cores share a batch, and wait for each other
        ]
    return stages


def _search_by_time(study: Study) -> list[Stage]:
    from models.study.search.structured.compute import SPEEDUPS, candidate_count

    pairs = len(study.data)
    held_out = 0 if study.holdout is None else len(study.holdout)
    speedups = len({*SPEEDUPS, *((study.speedup,) if study.speedup else ())})
    tried = candidate_count(study.shape[0], study.what, speedups)
    networks = 2 * speedups * (2 if held_out else 1) + 15
    evaluated = 2 * speedups * (pairs + held_out) + 15 * pairs
    timed = (1 + speedups) * (1 + study.effort.rounds) * min(256, held_out or pairs)
    stages = [
        *([] if study.cost else _cost(study)),
        ("gradients of heads, units and layers", Work(plain=min(2048, pairs) * GRADIENT)),
        (
            "candidates on a sample",
            Work(masked=tried * min(256, pairs) * SHARE, plain=tried * SMALLER),
        ),
        ("tuned scales", Work(plain=speedups * min(128, pairs) * TUNING_UNITS)),
        ("the smaller networks", Work(masked=evaluated * SHARE, plain=networks * SMALLER)),
        ("speed", Work(alone=timed * SHARE)),
    ]
    if study.recover_minutes:
        training = Work(seconds=60 * study.recover_minutes)
        stages += [(f"{name}: seconds of training", training) for name in ("recovered", "from_scratch")]
    return stages


def _cost(study: Study) -> list[Stage]:
    work = Work(alone=(1 + study.effort.rounds) * TIMED / study.shape[0])
    return [("time of a layer's parts", work)]


_PLANS: dict[str, Callable[[Study], list[Stage]]] = {
    "single": _single,
    "random": _random,
    "layers": _layers,
    "roles": _roles,
    "similarity": _similarity,
    "words": _words,
    "search": _search,
    "cost": _cost,
}


def in_words(seconds: float) -> str:
    """Return a duration in words: about 40 seconds, about 7 minutes, about 1 h 20 min."""
    if seconds < 90:
        return f"about {max(10, 10 * math.ceil(seconds / 10))} seconds"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} minutes"
    hours, minutes = divmod(10 * round(minutes / 10), 60)
    return f"about {hours} h {minutes:02} min"


def forecast(kind: str, study: Study) -> list[tuple[str, float]]:
    """Return the seconds that each stage of a kind, or of all kinds, takes here."""
    plan = stages(kind, study)
    pace = pace_of(study, plan)
    return [(stage, work.at(pace)) for stage, work in plan]
