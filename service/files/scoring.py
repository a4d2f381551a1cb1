"""Scores windows: tokenization beside the forward pass, batches of similar length, one thread per core.

A window's batches depend on the window alone, and each pass on its batch alone, so the scores of a window
are the same bits whenever it is scored, unless the device's memory is full: then its batches are halved.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headroom.models.batch import batches_by_length, in_halves
from headroom.models.checkpoint.chunks import Chunk, ChunkedPair, LongTitles, best_chunks, encode_chunks
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.cores import cores
from headroom.models.device import is_out_of_memory
from headroom.models.selection import RowMasks
from headroom.service.engine.threads import forward_pool
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import Window
from headroom.service.files.writing import encode, encode_rejects
from headroom.service.scoring.catalog import Variant, load_catalog


class Encoded(NamedTuple):
    """A scored window as it is written: its part and its rejects, and the rows of both."""

    data: bytes
    rejects: bytes
    rows: int
    set_aside: int


@dataclass(slots=True)
class _Rows:
    """The rows of a window.

    chunks: of each pair, with `overflow="chunks"`; else empty, and `encoded` has one row per pair.
    batches: the encoded rows of each, and their logits to come.
    """

    chunks: list[ChunkedPair] = field(default_factory=list)
    encoded: list[EncodedPair] = field(default_factory=list)
    batches: list[tuple[list[int], Future[np.ndarray]]] = field(default_factory=list)


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

    def submit(self, window: Window) -> tuple[Window, _Rows]:
        """Tokenize a window and hand its batches to the forward threads. Returns what `finish` takes."""
        fields = self.options.fields
        rows = _Rows()
        if pairs := [(row[fields.query], row[fields.title]) for row in window.rows]:
            self._start(rows, pairs)
        return window, rows

    def finish(self, pending: tuple[Window, _Rows]) -> Encoded:
        """Wait for a window's batches. Rows whose logits are not finite go to the window's rejects."""
        window, rows = pending
        values, finite = self._collect(rows)
        if not finite.all():
            other_rows = np.flatnonzero(~finite).tolist()
            window.set_aside(dict.fromkeys(other_rows, "the model gives no finite score"))
            finite_rows = np.flatnonzero(finite).tolist()
            values = {kind: [of_kind[row] for row in finite_rows] for kind, of_kind in values.items()}
        data = encode(window, values, self.options)
        return Encoded(data, encode_rejects(window), len(window.rows), len(window.rejects))

    def _start(self, rows: _Rows, pairs: Sequence[tuple[str, str]]) -> None:
        classifier = self.variant.classifier
        if self.options.overflow == "chunks":
            rows.chunks = encode_chunks(classifier.tokenizer, pairs, LongTitles("chunks"))
            rows.encoded = [row for pair in rows.chunks for row in pair.rows]
        else:
            rows.encoded = classifier.tokenizer.encode(pairs)
        beginnings = classifier.beginnings(rows.encoded, [None] * len(rows.encoded))
        lengths = [len(pair) for pair in rows.encoded]
        for indices in batches_by_length(lengths, self.batch_tokens, beginnings):
            rows.batches.append((indices, self.pool.submit(self._forward, rows, indices)))

    def _forward(self, rows: _Rows, indices: Sequence[int]) -> np.ndarray:
        """Return the logits of a batch, (n, labels). After a full memory, later batches are smaller."""

        def run(some: Sequence[int]) -> np.ndarray:
            batch = [rows.encoded[index] for index in some]
            try:
                return forward(self.variant, batch)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    self.batch_tokens = min(self.batch_tokens, sum(map(len, batch)) // 2)
                raise

        return in_halves(run, indices, self.device)

    def _collect(self, rows: _Rows) -> tuple[dict[str, Sequence[Any]], np.ndarray]:
        """Wait for a window's logits. Return the values of its pairs by kind, and which pairs' are finite."""
        classifier = self.variant.classifier
        logits = np.empty((len(rows.encoded), len(classifier.config.labels)), np.float32)
        for indices, future in rows.batches:
            logits[indices] = future.result()
        chunks: Sequence[Chunk | None] = ()
        if rows.chunks:
            best, chunks = best_chunks(classifier.scores(logits).raw_score.tolist(), rows.chunks)
            logits = logits[best]
        finite: np.ndarray = np.asarray(np.isfinite(logits).all(axis=1))
        scores = classifier.scores(np.where(finite[:, None], logits, 0))
        values: dict[str, Sequence[Any]] = {
            "score": list(scores.score),
            "truncated": [pair.truncated for pair in rows.chunks or rows.encoded],
            "chunk": [None if chunk is None else asdict(chunk) for chunk in chunks],
        }
        if classifier.grades:
            values |= {
                "grade": scores.grade.tolist(),
                "label": [classifier.grades[grade] for grade in scores.grade],
                "expected_grade": list(scores.expected_grade),
                "probabilities": list(scores.probabilities),
            }
        return {kind: values[kind] for kind in self.options.kinds}, finite


def forward(variant: Variant, batch: Sequence[EncodedPair]) -> np.ndarray:
    """Return the logits of one pass, (n, labels).

    The mask is sliced at once: left to itself, the network slices a mask when it comes for the second time,
    and a job that goes on would not have the bits of the first time.
    """
    return variant.classifier.forward(batch, RowMasks.of(variant.mask), sliced=True)
