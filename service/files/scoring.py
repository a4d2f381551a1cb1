"""Scores windows: tokenization beside the forward pass, batches of similar length, one thread per core.

A window's batches depend on the window alone, and each pass on its batch alone, so the scores of a window
are the same bits whenever it is scored, unless the device's memory is full: then its batches are halved.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headroom.models.batch import batches_by_length, in_halves
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.cores import cores
from headroom.models.device import is_out_of_memory
from headroom.models.selection import RowMasks
from headroom.service.engine.threads import forward_pool
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import Window
from headroom.service.files.writing import encode, encode_rejects
from headroom.service.scoring.catalog import load_catalog

NOT_FINITE = "the model gives no finite score"
"""Why a row whose logits are not finite is set aside."""


class Encoded(NamedTuple):
    """A scored window as it is written: its part and its rejects, and the rows of both."""

    data: bytes
    rejects: bytes
    rows: int
    set_aside: int


Batch = tuple[list[int], Future[np.ndarray]]
"""The indices of the pairs of a batch, and their logits to come."""


@dataclass(slots=True)
class _Pairs:
    """The pairs of a window, and the batches that score them."""

    encoded: Sequence[EncodedPair] = ()
    batches: list[Batch] = field(default_factory=list)


class WindowScorer:
    """The model that the options name and the threads that run it, on a CPU one per core."""

    def __init__(self, options: ScoreOptions) -> None:
        self.options = options
        catalog = load_catalog(
            options.live,
            options.model,
            options.device,
            options.dtype,
            options.label_order,
            deterministic=options.deterministic,
        )
        self.variant = catalog.choose(None, options.mask, with_units=True)
        self.device = self.variant.classifier.network.device
        on_gpu = self.device.type == "cuda"
        # On a GPU, two streams: while one computes, the other packs (docs/decisions/005-side-by-side.md).
        slots = 2 if on_gpu else cores()
        self.batch_tokens = 16_384 if on_gpu else 4_096
        masks = RowMasks.of(self.variant.mask)
        self.variant.classifier.network.capture(self.batch_tokens, masks, sliced=True)
        self.pool = forward_pool(slots, 1, self.device)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, window: Window) -> tuple[Window, _Pairs]:
        """Tokenize a window and hand its batches to the forward threads. Returns what `finish` takes."""
        fields = self.options.fields
        pairs = _Pairs()
        if texts := [(row[fields.query], row[fields.title]) for row in window.rows]:
            pairs.encoded = self.variant.classifier.tokenizer.encode(texts)
            pairs.batches = self.start(pairs.encoded)
        return window, pairs

    def finish(self, pending: tuple[Window, _Pairs]) -> Encoded:
        """Wait for a window's batches. Rows whose logits are not finite go to the window's rejects."""
        window, pairs = pending
        values, finite = self._collect(pairs)
        if not finite.all():
            other_rows = np.flatnonzero(~finite).tolist()
            window.set_aside(dict.fromkeys(other_rows, NOT_FINITE))
            finite_rows = np.flatnonzero(finite).tolist()
            values = {kind: [of_kind[row] for row in finite_rows] for kind, of_kind in values.items()}
        data = encode(window, values, self.options)
        return Encoded(data, encode_rejects(window), len(window.rows), len(window.rejects))

    def start(self, pairs: Sequence[EncodedPair]) -> list[Batch]:
        """Hand pairs to the forward threads, in batches of similar length."""
        beginnings = self.variant.classifier.beginnings(pairs, [None] * len(pairs))
        lengths = [len(pair) for pair in pairs]
        return [
            (indices, self.pool.submit(self._forward, pairs, indices))
            for indices in batches_by_length(lengths, self.batch_tokens, beginnings)
        ]

    def _forward(self, pairs: Sequence[EncodedPair], indices: Sequence[int]) -> np.ndarray:
        """Return the logits of a batch, (n, labels). After a full memory, later batches are smaller."""

        def run(some: Sequence[int]) -> np.ndarray:
            batch = [pairs[index] for index in some]
            try:
                # The mask is sliced at once: left to itself, the network slices a mask when it comes for the
                # second time, and a job that goes on would not have the bits of the first time.
                return self.variant.classifier.forward(batch, RowMasks.of(self.variant.mask), sliced=True)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    self.batch_tokens = min(self.batch_tokens, sum(map(len, batch)) // 2)
                raise

        return in_halves(run, indices, self.device)

    def _collect(self, pairs: _Pairs) -> tuple[dict[str, Sequence[Any]], np.ndarray]:
        """Wait for a window's logits. Return the values of its pairs by kind, and which pairs' are finite."""
        classifier = self.variant.classifier
        logits = np.empty((len(pairs.encoded), len(classifier.config.labels)), np.float32)
        for indices, future in pairs.batches:
            logits[indices] = future.result()
        finite: np.ndarray = np.asarray(np.isfinite(logits).all(axis=1))
        scores = classifier.scores(np.where(finite[:, None], logits, 0))
        values: dict[str, Sequence[Any]] = {
            "score": list(scores.score),
            "truncated": [pair.truncated for pair in pairs.encoded],
        }
        if classifier.grades:
            values |= {
                "grade": scores.grade.tolist(),
                "label": [classifier.grades[grade] for grade in scores.grade],
                "expected_grade": list(scores.expected_grade),
                "probabilities": list(scores.probabilities),
            }
        return {kind: values[kind] for kind in self.options.kinds}, finite
