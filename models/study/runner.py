"""Evaluates many head masks on the same pairs; a run that was stopped can be resumed.

The work is cut into parts: a batch of pairs under a block of masks. The logits of each part go to a file as
soon as they are computed, so that the next run computes only the missing parts.

A part is one pass. Its masks are taken in the order of their rows, from layer 0 up, so that masks which
agree in their first layers are neighbours. Two neighbours with the same rows 0 to L − 1 share the hidden
states that enter layer L: the second one starts there. Masks that switch off one head each thus start where
their head is.
"""

import contextlib
import hashlib
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headroom.models.arrays import Floats32
from headroom.models.batch import PackedBatch, batches_by_length, pack
from headroom.models.checkpoint.files import digest_of
from headroom.models.checkpoint.tokenizer import Pairs
from headroom.models.classifier import Classifier
from headroom.models.files import write_whole
from headroom.models.network import Network
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.graded import evaluation_of
from headroom.models.selection import Chosen
from headroom.models.study.pairs import Judged
from headroom.models.terminal import ProgressBar

BATCH_TOKENS = 2048
BLOCK = 64
"""Masks in a part: enough that neighbours share layers, few enough that a stopped run loses only seconds."""

PORTION = 4096
"""Pairs that are tokenized between two movements of a bar."""

WORTH_SLICING = 0.25
"""If at least this share of a layer's heads is off, cutting their weights out saves more than it costs."""

Matrix = Floats32
"""Head weights (layers, heads): 1 keeps a head, 0 removes it."""


class NoProgressBar(ProgressBar):
    """Ignores all progress."""


@dataclass(eq=False)
class Runner:
    """Computes the logits of pairs under any number of masks.

    cache: the directory of the parts; None keeps none. identity: names model, device and number format; a
    part that was computed under another identity is not used.
    """

    classifier: Classifier
    cache: Path | None = None
    identity: str = ""
    progress: ProgressBar = field(default_factory=NoProgressBar)

    def logits(self, data: Judged, masks: Sequence[Matrix], what: str = "masks") -> Floats32:
        """Return the logits under each mask (layers, heads): (masks, n, grades) float32, in the given order.

        what: the name of this work on the progress bar. On a CPU, each core computes a part of its own: cores
        that share a part wait for each other at every matrix product.
        """
        # Sorted, so that neighbours share their first layers.
        distinct, index_of = np.unique(np.asarray(masks, np.float32), axis=0, return_inverse=True)
        lengths = self._lengths(data.pairs)
        blocks = [slice(start, start + BLOCK) for start in range(0, len(distinct), BLOCK)]
        parts = [(rows, block) for rows in batches_by_length(lengths, BATCH_TOKENS) for block in blocks]
        out = np.empty((len(distinct), len(data), len(self.classifier.config.labels)), np.float32)
        self.progress.start(what, len(distinct) * len(data))

        def compute(rows: list[int], block: slice) -> int:
            out[block, rows] = self._part([data.pairs[row] for row in rows], distinct[block])
            return len(rows) * len(distinct[block])

        cores = torch.get_num_threads()
        workers = min(cores, len(parts)) if self.classifier.network.device.type == "cpu" else 1
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores // workers,))
        try:
            for done in as_completed([pool.submit(compute, *part) for part in parts]):
                self.progress.advance(done.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a part takes seconds: do not wait if stopped
            torch.set_num_threads(cores)  # the pool's threads changed the default for new threads
        return out[index_of.ravel()]

    def _lengths(self, pairs: Pairs) -> list[int]:
        """Return how many tokens each pair has; of many pairs, with a stage of the progress."""
        if len(pairs) > PORTION:
            self.progress.start("tokens", len(pairs))
        lengths = list[int]()
        for start in range(0, len(pairs), PORTION):
            encoded = self.classifier.tokenizer.encode(pairs[start : start + PORTION])
            lengths += [len(pair) for pair in encoded]
            if len(pairs) > PORTION:
                self.progress.advance(len(encoded))
        return lengths

    def evaluation(self, data: Judged, logits: Floats32) -> Evaluation:
        """Return the evaluation of one mask's logits (n, grades)."""
        scores = self.classifier.scores(logits)
        return evaluation_of(data.labelled, scores)

    def evaluate(self, data: Judged, masks: Sequence[Matrix], what: str) -> list[Evaluation]:
        """Return the evaluation under each mask. For thousands of masks, `logits` takes less memory."""
        return [self.evaluation(data, logits) for logits in self.logits(data, masks, what)]

    def _part(self, pairs: Pairs, masks: Floats32) -> Floats32:
        """Return some pairs' logits (masks, pairs, grades), least relevant grade first, from the cache if
        they are there."""
        if self.cache is None:
            return self._computed(pairs, masks)
        digest = hashlib.sha256(self.identity.encode())
        for query, title in pairs:
            digest.update(f"\0{len(query)}:{query}{title}".encode())
        digest.update(repr(masks.shape).encode() + masks.tobytes())
        file = self.cache / f"{digest.hexdigest()[:32]}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):  # it is not there, or damaged
            cached: Floats32 = np.load(file)
            if cached.shape == (len(masks), len(pairs), len(self.classifier.config.labels)):
                return cached
        logits = self._computed(pairs, masks)
        buffer = io.BytesIO()
        np.save(buffer, logits)
        write_whole(file, buffer.getvalue())
        return logits

    def _computed(self, pairs: Pairs, masks: Floats32) -> Floats32:
        """Compute some pairs' logits (masks, pairs, grades) in one pass, least relevant grade first."""
        network = self.classifier.network
        encoded = self.classifier.tokenizer.encode(pairs)
        batch = pack(
            encoded,
            device=network.device,
            deterministic=network.deterministic,
            beginnings=self.classifier.beginnings(encoded, [None] * len(encoded)),  # one mask for all
        )
        logits = logits_under(network, batch, masks)
        return np.asarray(np.take(logits, self.classifier.config.label_order, axis=2))


def identity_of(directory: Path, classifier: Classifier) -> str:
    """Return a name for the numbers that a checkpoint gives here: a hash of its files, the order of its
    labels, the kind of device and the number format."""
    network = classifier.network
    order = classifier.config.label_order
    return f"2 {digest_of(directory)} {order} {network.device.type} {network.dtype} {network.deterministic}"


def logits_under(network: Network, batch: PackedBatch, masks: Floats32) -> Floats32:
    """Return the logits of a batch's pairs under each mask.

    masks: (masks, layers, heads) float32 in the numbering of the unpruned model; any finite weights.
    Returns (masks, pairs, labels) float32, pairs in the caller's order, labels as in the checkpoint. A
    deterministic network gives the same bits as one pass for each mask.
    """
    logits = np.empty((len(masks), len(batch.answers), len(network.config.labels)), np.float32)
    layers = len(network.layers)
    with torch.inference_mode():
        states = [network.embed(batch)]  # states[n] enters layer n; the last one enters the classifier
        before = np.full_like(masks[0], np.nan)  # differs from every mask
        for index in np.lexsort(masks.reshape(len(masks), -1).T[::-1]):
            differs = (masks[index] != before).any(axis=1)
            first = int(differs.argmax()) if differs.any() else layers
            selection = (_chosen(network, number, masks[index, number]) for number in range(first, layers))
            later = network.hidden_states(batch, selection, entering=states[first], first=first)
            states[first:] = [state.clone() for state in later]  # the next layer may overwrite it
            pooled = network.pool(states[-1], batch)
            logits[index] = network.classify(pooled)[batch.answers].numpy(force=True)
            before = masks[index]
    return logits


def _chosen(network: Network, number: int, weights: Floats32) -> Chosen:
    """Return what layer `number` computes under one row of weights; heads are left out if that pays."""
    layer = network.layers[number]
    heads = layer.heads
    computed = weights[list(network.config.kept_heads[number])]
    on = np.flatnonzero(computed)
    if heads is None or not len(on):
        return Chosen(None, layer.units)
    if not network.deterministic and len(on) <= (1 - WORTH_SLICING) * heads.count:
        heads = heads.only(on.tolist())
        computed = computed[on]
    head_weights: Tensor | None = None
    if (computed != 1).any():
        head_weights = torch.from_numpy(computed[None]).to(network.device)
    return Chosen(heads, layer.units, head_weights)
