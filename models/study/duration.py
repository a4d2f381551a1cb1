"""Estimates how long a study will take from the speed of a first batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from models.batch import batches_by_length
from models.device import one_thread
from models.study import runner
from models.study.heads import held_heads
from models.study.study import Study
from models.study.wording import layer_range

Stage = tuple[str, float]
"""A stage as Progress.start names it, and its work in forward passes of one pair."""

FIRST_PAIRS = 64
FIRST_MASKS = 3

# The cost of work on one core, in forward passes of one pair on two cores, measured with the shipped model in
# float32. Other models and more cores change it, so the estimate is rough.
GRADIENT = 4.0
"""Per pair: forward and backward in float32."""
TUNING = 4.0
"""Per pair and mask."""
ROLES = 25.0
"""Per pair: the attention of all heads and its 999 permutations."""
DISTANCES = 40.0
"""Per pair: the distance of every two heads."""
STATISTICS = 3.0
"""Per mask: its metrics and their bootstrap."""


def stages(kind: str, study: Study) -> list[Stage]:
    """Return the stages of a kind, or of all kinds, in their order."""
    kinds = tuple(_PLANS) if kind == "all" else (kind,)
    return [stage for one in kinds for stage in _PLANS[one](study)]


def seconds_per_pass(study: Study) -> float:
    """Measure the seconds that a pair under one mask takes here, with each core at work on a part of its
    own."""
    clf = study.classifier
    step = max(len(study.data) // FIRST_PAIRS, 1)
    encoded = clf.tokenizer.encode(study.data.pairs[::step][:FIRST_PAIRS])
    rows = next(batches_by_length([len(pair) for pair in encoded], runner.BATCH_TOKENS))
    first = [encoded[row] for row in rows]
    masks = (np.random.default_rng(0).random((FIRST_MASKS, *study.shape)) < 0.5).astype(np.float32)
    cores = torch.get_num_threads() if clf.network.device.type == "cpu" else 1
    with one_thread():
        runner.logits_of(clf, first, masks[:1])  # the first call also sets things up
        started = time.perf_counter()
        runner.logits_of(clf, first, masks)
        took = time.perf_counter() - started
    return took / (len(first) * len(masks)) / cores


def _single(study: Study) -> list[Stage]:
    heads, layers = len(held_heads(study.classifier)), study.shape[0]
    shared = (layers + 1) / 2 / layers  # the pass under a mask starts at the layer of its head
    work = heads * STATISTICS * (1 + study.effort.permutations / 10_000)
    return [("single heads", heads * shared * len(study.data)), ("intervals of single heads", work)]


def _random(study: Study) -> list[Stage]:
    layers = study.shape[0]
    masks = study.effort.draws * (study.effort.fractions - 1)
    stages = []
    halves = [(range(layers), 1.0)]
    if layers > 1:
        halves += [(range(layers // 2), 1.0), (range(layers // 2, layers), 0.5)]
    for chosen, share in halves:
        name = layer_range(chosen)
        stages.append((f"random heads of layers {name}", masks * share * len(study.data)))
        stages.append((f"bands of layers {name}", masks * STATISTICS))
    return stages


def _layers(study: Study) -> list[Stage]:
    layers = study.shape[0]
    return [
        ("whole layers", 2 * layers * len(study.data)),
        ("outputs of later layers", (layers + 1) * 400 * (study.effort.tokens / 1200) ** 2),
    ]


def _roles(study: Study) -> list[Stage]:
    pairs = min(study.effort.role_pairs, len(study.data))
    tried = 6 * study.effort.role_sets * min(600, len(study.data))
    return [("attention of every head", pairs * ROLES), ("heads of a role off, and random ones", tried)]


def _similarity(study: Study) -> list[Stage]:
    pairs = min(study.effort.compared_pairs, len(study.data)) * DISTANCES
    stages = [("attention of every two heads", pairs)]
    if study.peer is not None:
        stages.append(("attention of the other model's heads", 2 * pairs))
    return [*stages, ("probes", 3 * (study.shape[0] + 1) * 100)]


def _words(study: Study) -> list[Stage]:
    layers = study.shape[0]
    shared = 1 + (layers + 1) / 2  # the pass under a mask starts at the layer that is off
    titles = len(study.data) / max(len(study.data.queries), 1)
    queries = min(study.effort.condensed_queries, len(study.data.queries))
    words = [min(len(text.split()), 20) for text in study.data.queries]
    texts = 1 + sum(words) / max(len(words), 1)
    return [
        ("words left out", queries * titles * texts * shared),
        ("condensed queries", queries * titles * 3),
    ]


def _search(study: Study) -> list[Stage]:
    pairs = len(study.data)
    if study.by_time:
        return _search_by_time(study)
    sizes, orders = len(study.effort.shares), study.effort.orders
    stages = [
        ("gradients of the mask", pairs * GRADIENT),
        ("tuned scales", sizes * min(128, pairs) * TUNING),
        ("masks on the search data", (2 * sizes + 20 + 4 * orders) * pairs),
    ]
    if study.holdout is not None:
        held_out = len(study.holdout)
        stages.append(("masks on the held-out queries", 2 * sizes * held_out))
        stages.append(("rivals of the mask, held out", (1 + 2 * orders) * held_out))
        stages.append(("speed", 4 * 7 * 256))
    return stages


def _search_by_time(study: Study) -> list[Stage]:
    pairs, layers = len(study.data), study.shape[0]
    held_out = 0 if study.holdout is None else len(study.holdout)
    candidates = layers * layers / 4 if "layers" in study.what else 0
    stages = [] if study.cost else _cost(study)
    return [
        *stages,
        ("gradients of heads, units and layers", min(2048, pairs) * GRADIENT),
        ("candidates on a sample", (candidates + 3 * layers) * min(256, pairs) / 2),
        ("tuned scales", 6 * min(128, pairs) * TUNING),
        ("the smaller networks", (12 * (pairs + held_out) + 30 * pairs) / 2),
        ("speed", 4 * (1 + study.effort.rounds) * 256),
    ]


def _cost(study: Study) -> list[Stage]:
    return [("time of a layer's parts", (1 + study.effort.rounds) * 40 / study.shape[0] * 64)]


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


def total(plan: Sequence[Stage]) -> float:
    """Return the work of all stages."""
    return sum(work for _, work in plan)
