"""About how long a study will take, from the speed of a first batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from models.classifier import batches_by_length
from models.study import runner
from models.study.base import Study
from models.study.search.importance import held_heads

Stage = tuple[str, float]
"""A stage as Progress.start names it, and its work: forward passes of one pair, or what takes as long."""

FIRST_PAIRS = 64
FIRST_MASKS = 3

# What work on one core takes, in forward passes of one pair on two cores; measured with the shipped model in
# float32. Other models and more cores move it, so a forecast is rough.
GRADIENT = 4.0
"""Of a pair: in float32, forward and backward."""
TUNING = 4.0
"""Of a pair and a mask."""
ROLES = 25.0
"""Of a pair: all heads' attention and its 999 permutations."""
DISTANCES = 40.0
"""Of a pair: every two heads."""
STATISTICS = 3.0
"""Of a mask: its metrics and their bootstrap."""


def stages(kind: str, study: Study) -> list[Stage]:
    """The stages of a kind, or of all, in their order."""
    kinds = ("single", "random", "layers", "roles", "similarity", "search") if kind == "all" else (kind,)
    return [stage for one in kinds for stage in _PLANS[one](study)]


def seconds_per_pass(study: Study) -> float:
    """Measured: the seconds that a pair under one mask takes here, all cores at work on parts of their
    own."""
    clf = study.classifier
    step = max(len(study.data) // FIRST_PAIRS, 1)
    encoded = clf.tokenizer.encode(study.data.pairs[::step][:FIRST_PAIRS])
    rows = next(batches_by_length([len(pair) for pair in encoded], runner.BATCH_TOKENS))
    first = [encoded[row] for row in rows]
    masks = (np.random.default_rng(0).random((FIRST_MASKS, *study.shape)) < 0.5).astype(np.float32)
    on_cpu = clf.network.device.type == "cpu"
    threads = torch.get_num_threads()
    try:
        if on_cpu:
            torch.set_num_threads(1)
        runner.logits_of(clf, first, masks[:1])  # what is set up once
        started = time.perf_counter()
        runner.logits_of(clf, first, masks)
        took = time.perf_counter() - started
    finally:
        torch.set_num_threads(threads)
    return took / (len(first) * len(masks)) / (threads if on_cpu else 1)


def _single(study: Study) -> list[Stage]:
    heads, layers = len(held_heads(study.classifier)), study.shape[0]
    shared = (layers + 1) / 2 / layers  # a mask starts at the layer of its head
    work = heads * STATISTICS * (1 + study.effort.permutations / 10_000)
    return [("single heads", heads * shared * len(study.data)), ("intervals of single heads", work)]


def _random(study: Study) -> list[Stage]:
    layers = study.shape[0]
    masks = study.effort.draws * (study.effort.fractions - 1)
    found = []
    halves = [(range(layers), 1.0)]
    if layers > 1:
        halves += [(range(layers // 2), 1.0), (range(layers // 2, layers), 0.5)]
    for layers_, share in halves:
        name = f"{layers_.start}-{layers_.stop - 1}" if len(layers_) > 1 else str(layers_.start)
        found.append((f"random heads of layers {name}", masks * share * len(study.data)))
        found.append((f"bands of layers {name}", masks * STATISTICS))
    return found


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
    found = [("attention of every two heads", pairs)]
    if study.peer is not None:
        found.append(("attention of the other model's heads", 2 * pairs))
    return [*found, ("probes", 3 * (study.shape[0] + 1) * 100)]


def _search(study: Study) -> list[Stage]:
    pairs = len(study.data)
    sizes, orders = len(study.effort.shares), study.effort.orders
    found = [
        ("gradients of the mask", pairs * GRADIENT),
        ("tuned scales", sizes * min(128, pairs) * TUNING),
        ("masks on the search data", (2 * sizes + 20 + 4 * orders) * pairs),
    ]
    if study.holdout is not None:
        held_out = len(study.holdout)
        found.append(("masks on the held-out queries", 2 * sizes * held_out))
        found.append(("rivals of the mask, held out", (1 + 2 * orders) * held_out))
        found.append(("speed", 4 * 7 * 256))
    return found


_PLANS: dict[str, Callable[[Study], list[Stage]]] = {
    "single": _single,
    "random": _random,
    "layers": _layers,
    "roles": _roles,
    "similarity": _similarity,
    "search": _search,
}


def in_words(seconds: float) -> str:
    """About 40 seconds, about 7 minutes, about 1 hour 20 minutes: two digits are all that is known."""
    if seconds < 90:
        return f"about {max(10, 10 * math.ceil(seconds / 10))} seconds"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} minutes"
    hours, minutes = divmod(10 * round(minutes / 10), 60)
    return f"about {hours} h {minutes:02} min"


def total(plan: Sequence[Stage]) -> float:
    """The work of all stages."""
    return sum(work for _, work in plan)
