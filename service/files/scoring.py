"""Scores windows: tokenization beside the forward pass, batches of similar length, one thread per core.

A window's batches depend on the window alone, and each pass on its batch alone, so the scores of a window
are the same bits whenever it is scored, unless the device's memory is full: then its batches are halved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from models.batch import batches_by_length, in_halves
from models.checkpoint.chunks import ChunkedPair, LongTitles, best_chunks, encode_chunks
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.cores import cores
from models.device import is_out_of_memory
from models.errors import ModelError
from models.masks.rows import RowMasks
from service.engine.threads import forward_pool
from service.errors import InvalidRequest
from service.files.options import ColumnSet, ScoreOptions
from service.files.reading import Window
from service.files.running import Encoded
from service.files.writing import encode, encode_rejects
from service.scoring.catalog import BASE, Variant, build_catalog


@dataclass(slots=True)
class _Group:
    """Rows of a window that share their batches. masks: one for each row if they differ; else None.

    chunks: of each pair, with `overflow="chunks"`; else empty, and `encoded` has one row per pair.
    batches: the encoded rows of each, and their logits to come.
    """

    variant: Variant
    rows: list[int]
    masks: list[Any] | None = None
    chunks: list[ChunkedPair] = field(default_factory=list)
    encoded: list[EncodedPair] = field(default_factory=list)
    batches: list[tuple[list[int], Future[np.ndarray]]] = field(default_factory=list)


class WindowScorer:
    """The models that the options name and the threads that run them: what `running.Workers` asks for.

    threads: forward threads on a CPU; default: one per core.
    """

    ahead = 2

    def __init__(self, options: ScoreOptions, *, threads: int | None = None) -> None:
        self.options = options

        def load(path: str | None) -> Classifier:
            return Classifier.load(path, options.device, options.dtype)

        self.catalog = build_catalog(options.live, {BASE: load(options.model)}, load)
        self.device = self.catalog.base.network.device
        on_gpu = self.device.type == "cuda"
        # On a GPU, two streams: while one computes, the other packs (docs/decisions/005-side-by-side.md).
        slots = 2 if on_gpu else threads or cores()
        self.batch_tokens = 16_384 if on_gpu else 4_096
        self.pool = forward_pool(slots, 1, self.device)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, window: Window) -> tuple[Window, list[list[_Group]]]:
        """Tokenize a window and hand its batches to the forward threads. Bad rows go to its rejects."""
        fields, columns = self.options.fields, self.options.columns
        if fields.mask is None and fields.variant is None:
            rows = list(range(len(window.rows)))
            groups = [[_Group(self._variant(column, {}), rows)] if rows else [] for column in columns]
        else:
            chosen: list[list[Variant]] = []
            wrong: dict[int, str] = {}
            for index, row in enumerate(window.rows):
                try:
                    chosen.append([self._variant(column, row) for column in columns])
                except (ModelError, InvalidRequest) as error:
                    wrong[index] = str(error)
            window.set_aside(wrong)
            groups = [_grouped([row[index] for row in chosen]) for index in range(len(columns))]
        pairs = [(row[fields.query], row[fields.title]) for row in window.rows]
        for group in (group for of_column in groups for group in of_column):
            self._start(group, [pairs[row] for row in group.rows])
        return window, groups

    def finish(self, pending: tuple[Window, list[list[_Group]]]) -> Encoded:
        """Wait for a window's batches. Rows whose logits are not finite go to the window's rejects."""
        window, columns = pending
        size = len(window.rows)
        broken: set[int] = set()
        results = []
        for groups in columns:
            values: dict[str, list[Any]] = {kind: [None] * size for kind in self.options.kinds}
            for group in groups:
                found, finite = self._collect(group)
                broken.update(row for row, is_finite in zip(group.rows, finite, strict=True) if not is_finite)
                for kind in values.keys() & found.keys():
                    for row, value in zip(group.rows, found[kind], strict=True):
                        values[kind][row] = value
            results.append(values)
        window.set_aside(dict.fromkeys(broken, "the model gives no finite score"))
        for values in results if broken else ():
            for kind, every in values.items():
                values[kind] = [value for row, value in enumerate(every) if row not in broken]
        data = encode(window, results, self.options)
        return Encoded(data, encode_rejects(window), len(window.rows), len(window.rejects))

    def _variant(self, column: ColumnSet, row: Mapping[str, Any]) -> Variant:
        fields = self.options.fields
        variant = column.variant if fields.variant is None else row.get(fields.variant) or None
        mask = column.mask if fields.mask is None else row.get(fields.mask) or None
        for name, value in ((fields.variant, variant), (fields.mask, mask)):
            if name is not None and value is not None and not isinstance(value, str):
                raise ModelError(f"{name} is not text")
        return self.catalog.choose(variant, mask, with_units=fields.mask is None)

    def _start(self, group: _Group, pairs: Sequence[tuple[str, str]]) -> None:
        tokenizer = group.variant.classifier.tokenizer
        if self.options.overflow == "chunks":
            group.chunks = encode_chunks(tokenizer, pairs, LongTitles("chunks"))
            group.encoded = [row for pair in group.chunks for row in pair.rows]
            if group.masks is not None:
                pairs_masks = zip(group.masks, group.chunks, strict=True)
                group.masks = [mask for mask, pair in pairs_masks for _ in pair.rows]
        else:
            group.encoded = tokenizer.encode(pairs)
        for rows in batches_by_length([len(pair) for pair in group.encoded], self.batch_tokens):
            group.batches.append((rows, self.pool.submit(self._forward, group, rows)))

    def _forward(self, group: _Group, rows: Sequence[int]) -> np.ndarray:
        """Return the logits of a batch, (n, labels). After a full memory, later batches are smaller."""

        def run(some: Sequence[int]) -> np.ndarray:
            batch = [group.encoded[row] for row in some]
            try:
                return forward(group.variant, batch, group.masks and [group.masks[row] for row in some])
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    self.batch_tokens = min(self.batch_tokens, sum(map(len, batch)) // 2)
                raise

        return in_halves(run, rows, self.device)

    def _collect(self, group: _Group) -> tuple[dict[str, Sequence[Any]], list[bool]]:
        """Return the values of a group's rows by kind, and whether each row's logits are finite."""
        classifier = group.variant.classifier
        logits = np.empty((len(group.encoded), len(classifier.config.labels)), np.float32)
        for rows, future in group.batches:
            logits[rows] = future.result()
        values: dict[str, Sequence[Any]] = {}
        pairs: Sequence[EncodedPair | ChunkedPair] = group.encoded
        if group.chunks:
            best, chunks = best_chunks(classifier.scores(logits).raw_score.tolist(), group.chunks)
            logits, pairs = logits[best], group.chunks
            values["chunk"] = [None if chunk is None else asdict(chunk) for chunk in chunks]
        finite: np.ndarray = np.asarray(np.isfinite(logits).all(axis=1))
        scores = classifier.scores(np.where(finite[:, None], logits, 0))
        values |= {"score": list(scores.score), "truncated": [pair.truncated for pair in pairs]}
        if classifier.grades:
            values["grade"] = scores.grade.tolist()
            values["label"] = [classifier.grades[grade] for grade in scores.grade]
            values["expected_grade"] = list(scores.expected_grade)
            values["probabilities"] = list(scores.probabilities)
        return values, finite.tolist()


def forward(variant: Variant, batch: Sequence[EncodedPair], masks: Sequence[Any] | None) -> np.ndarray:
    """Return the logits of one pass, (n, labels).

    A mask that all rows share is sliced at once: left to itself, the network slices a mask when it comes for
    the second time, and a job that goes on would not have the bits of the first time. With a mask for each
    row, one extra row that keeps every head prevents the slicing of heads.
    """
    classifier = variant.classifier
    if masks is None:
        mask = variant.mask
        return classifier.forward(batch, None if mask.is_none else RowMasks.of(mask), sliced=True)
    all_heads = replace(masks[0], matrix=np.ones_like(masks[0].matrix))
    return classifier.forward([*batch, batch[0]], RowMasks.of([*masks, all_heads]), sliced=True)[:-1]


def _grouped(variants: Sequence[Variant]) -> list[_Group]:
    """Put the rows into groups that may share a batch: of one checkpoint, with the same layers and units."""
    groups: dict[tuple[str, bytes], _Group] = {}
    for row, variant in enumerate(variants):
        groups.setdefault((variant.checkpoint, variant.mask.structure), _Group(variant, [])).rows.append(row)
    for group in groups.values():
        masks = [variants[row].mask for row in group.rows]
        if len({mask.id for mask in masks}) > 1:
            group.masks = masks
    return list(groups.values())
