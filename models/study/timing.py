"""Measures on this machine what a layer costs by heads kept, units kept and tokens in the batch.

A layer's halves run one after the other, so each is measured alone and a layer takes their sum; some whole
layers are measured too, and the table says how far the sum is off. All is computed on one thread, as the
service computes a batch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.batch import TOKEN_MULTIPLE, PackedBatch, pack
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.device import describe, one_thread, processor_features
from models.layer import FeedForward, Layer
from models.network import Network
from models.ops.torch import normed
from models.selection import Chosen
from models.study.base import Judged, Progress, Silent
from models.study.latency import LatencyTable

TOKENS = (64, 256, 1024, 2048)
ROUNDS = 7
"""How often each part is timed, all parts in turn. The shortest time counts, because other work only adds
to it."""
STEPS = 12
"""The most numbers of heads, and of units, above 0 that are measured; those between are interpolated."""
CHECKED = ((0.5, 0.5), (1.0, 0.25), (0.25, 1.0))
"""The shares of heads and units of the whole layers that are measured beside the sums."""


def mean_length(classifier: Classifier, data: Judged) -> int:
    """Return the mean number of tokens of the data's pairs."""
    return round(float(np.mean([len(pair) for pair in classifier.tokenizer.encode(data.pairs)])))


def measure(
    classifier: Classifier,
    *,
    sequence_tokens: int,
    tokens: Sequence[int] = TOKENS,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> LatencyTable:
    """Time the parts of a layer at several numbers of tokens.

    sequence_tokens: the length of each sequence. tokens: about how many tokens the batches hold; the table
    has the real numbers, because a batch holds whole sequences.
    """
    progress = progress or Silent()
    network, config = classifier.network, classifier.config
    sequence_tokens = min(sequence_tokens, config.max_positions)
    tokens = sorted({max(1, round(count / sequence_tokens)) * sequence_tokens for count in tokens})
    rows = sorted({TOKEN_MULTIPLE, *tokens})
    number = max(range(config.num_layers), key=lambda n: (len(config.kept_heads[n]), config.widths[n]))
    widest = max(range(config.num_layers), key=config.widths.__getitem__)
    heads, units = _steps(len(config.kept_heads[number]), 1), _steps(config.widths[widest], 16)
    timed: dict[tuple[Any, ...], Callable[[], object]] = {}
    batches = {count: _batch(classifier, count, sequence_tokens) for count in tokens}
    states = {count: network.embed(batches[count]) for count in tokens}
    lives = {kept: _live(network.layers[number], kept) for kept in heads}
    layer = network.layers[widest]
    cuts = {kept: layer.units if kept == units[-1] else layer.units.only(range(kept)) for kept in units}
    for count, first in itertools.product(tokens, (False, True)):
        batch, x = batches[count], states[count]
        for kept in heads:
            timed["attention", first, count, kept] = _attention_half(
                network, number, x, batch, lives[kept], first
            )
    whole = max(states.values(), key=len)
    for count, kept in itertools.product(rows, units):
        timed["feed forward", count, kept] = _feed_forward_half(
            layer, cuts[kept], states.get(count, whole[:count])
        )
    for count in tokens:
        timed["other", count] = _ends(network, batches[count])
    count = max(tokens)
    checks = sorted({(_near(heads, a), _near(units, b)) for a, b in CHECKED})
    for h, u in checks:
        live = replace(lives[h], units=cuts[u])
        timed["whole", h, u, count] = _whole(network, number, states[count], batches[count], live)
    seconds = _shortest(timed, rounds, network.ops.synchronize, progress)
    attention, attention_first = (
        np.array([[seconds["attention", first, count, kept] for kept in heads] for count in tokens])
        for first in (False, True)
    )
    return LatencyTable(
        heads=heads, units=units, tokens=tuple(tokens), rows=tuple(rows),
        attention=attention, attention_first=attention_first,
        feed_forward=np.array([[seconds["feed forward", count, kept] for kept in units] for count in rows]),
        other=np.array([seconds["other", count] for count in tokens]),
        sequence_tokens=sequence_tokens, reads_first_tokens=network.reads_first_tokens,
        checked=tuple((h, u, count, seconds["whole", h, u, count]) for h, u in checks),
        about=_about(classifier, rounds),
    )  # fmt: skip


def _steps(whole: int, multiple: int) -> tuple[int, ...]:
    """Return up to STEPS numbers up to `whole`, multiples of `multiple` but for the last; 0 too for heads."""
    step = max(multiple, -(-whole // (STEPS * multiple)) * multiple)
    counts = {*range(step, whole, step), whole}
    return tuple(sorted(counts | {0} if multiple == 1 else counts))


def _near(counts: Sequence[int], share: float) -> int:
    return min(counts, key=lambda count: abs(count - share * counts[-1]))


def _batch(classifier: Classifier, tokens: int, length: int) -> PackedBatch:
    """Return a batch of sequences of `length` random tokens; `tokens`, in all, is a multiple of `length`."""
    rng = np.random.default_rng(0)
    pairs = [
        EncodedPair(
            ids=rng.integers(0, classifier.config.vocab_size, length).astype(np.int32),
            query_tokens=length // 4,
            unknown_tokens=0,
            truncated=False,
        )
        for _ in range(tokens // length)
    ]
    return pack(pairs, device=classifier.network.device)


def _live(layer: Layer, kept: int) -> Chosen:
    heads = layer.heads if kept else None
    if heads is not None and kept < heads.count:
        heads = heads.only(range(kept))
    return Chosen(heads, layer.units)


def _attention_half(
    network: Network, number: int, x: torch.Tensor, batch: PackedBatch, live: Chosen, first: bool
) -> Callable[[], object]:
    layer, view = network.layers[number], batch.of_first_tokens() if first else batch

    def run() -> object:
        context = network.context(layer, x, view, live)
        return network.after_attention(layer, view.leaving(x), context, live)

    return run


def _feed_forward_half(layer: Layer, units: FeedForward, x: torch.Tensor) -> Callable[[], object]:
    return lambda: units.down(units.inner(normed(x, layer.feed_forward_input_norm)), x.clone())


def _ends(network: Network, batch: PackedBatch) -> Callable[[], object]:
    def run() -> object:
        x = network.embed(batch)
        return network.classify(network.pool(network.views(batch)[-1].leaving(x), batch))

    return run


def _whole(
    network: Network, number: int, x: torch.Tensor, batch: PackedBatch, live: Chosen
) -> Callable[[], object]:
    return lambda: network.layer_output(network.layers[number], x, batch, live)


def _shortest(
    timed: dict[tuple[Any, ...], Callable[[], object]],
    rounds: int,
    finish: Callable[[], None],
    progress: Progress,
) -> dict[tuple[Any, ...], float]:
    """Run everything in turn, once unmeasured and `rounds` times measured; return the shortest times."""
    progress.start("time of a layer's parts", (1 + rounds) * len(timed))
    seconds = dict.fromkeys(timed, np.inf)
    with one_thread(), torch.inference_mode():
        for turn in range(1 + rounds):
            for name, run in timed.items():
                started = time.perf_counter()
                run()
                finish()
                if turn:
                    seconds[name] = min(seconds[name], time.perf_counter() - started)
                progress.advance()
    return seconds


def _about(classifier: Classifier, rounds: int) -> dict[str, Any]:
    network = classifier.network
    return {
        "model": classifier.name,
        "number_format": network.number_format,
        "hidden_size": classifier.config.hidden_size,
        "head_size": classifier.config.head_size,
        "device": describe(network.device),
        "processor": _processor(),
        "features": processor_features() if network.device.type == "cpu" else [],
        "kernels": network.ops.kernels,
        "torch": torch.__version__,
        "threads": 1,
        "rounds": rounds,
    }


def _processor() -> str:
    """Return the processor's name; "" where the system does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
