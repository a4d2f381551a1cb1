"""Scores windows: tokenization beside the forward pass, batches of similar length, one thread per core.

A window's batches depend on the window alone, and each pass on its batch alone, so the scores of a window
are the same bits whenever it is scored, unless the device's memory is full: then its batches are halved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from models.batch import batches_by_length
from models.checkpoint.chunks import Chunk, ChunkedPair, LongTitles, best_chunks, encode_chunks
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.cores import cores
from models.device import in_halves, is_out_of_memory
from models.errors import ModelError
from models.masks.rows import RowMasks
from service.engine.threads import forward_pool
from service.errors import InvalidRequest
from service.files.reading import Window
from service.files.request import Column, Request
from service.scoring.catalog import BASE, Catalog, Choice, build_catalog

SLICED_ROWS = 32
"""A mask that so many rows of a window name gets batches of its own, without the heads that are off."""


@dataclass(slots=True)
class _Group:
    """Rows of a window that share their batches. masks: one for each row if they differ."""

    choice: Choice
    rows: list[int]
    masks: list[Any] | None = None


@dataclass(slots=True)
class _Passes:
    """The batches under way of one group: the encoded rows of each, and their logits to come.

    chunks: of each pair, with `overflow="chunks"`; else empty, and `encoded` has one row per pair.
    """

    group: _Group
    chunks: list[ChunkedPair]
    encoded: list[EncodedPair]
    batches: list[tuple[list[int], Future[np.ndarray]]] = field(default_factory=list)


@dataclass(slots=True)
class Pending:
    """A window whose batches are under way. passes: by output column."""

    window: Window
    passes: list[list[_Passes]]


@dataclass(slots=True)
class Result:
    """The scores of n rows, named as in the HTTP answers; a one-label model gives a score and no grades."""

    score: list[float] | np.ndarray
    grade: list[int | None] | np.ndarray
    label: list[str | None]
    expected_grade: list[float | None] | np.ndarray
    probabilities: list[Any] | np.ndarray
    truncated: list[bool]
    chunk: list[Chunk | None] | None = None


class Scorer:
    """The models of a request and the threads that run them.

    threads: forward threads on a CPU; default: one per core.
    """

    def __init__(self, request: Request, *, threads: int | None = None) -> None:
        self.request = request

        def load(path: str | None) -> Classifier:
            return Classifier.load(path, request.device, request.dtype)

        self.catalog: Catalog = build_catalog(request.live, {BASE: load(request.model)}, load)
        self.device = self.catalog.base.network.device
        on_gpu = self.device.type == "cuda"
        # On a GPU, two streams: while one computes, the other packs (docs/decisions/005-side-by-side.md).
        slots = 2 if on_gpu else threads or cores()
        self.batch_tokens = 16_384 if on_gpu else 4_096
        self.pool = forward_pool(slots, 1, torch.device(self.device))
        self.choices = [
            self.catalog.choose(column.variant, column.mask, with_units=True) for column in request.columns
        ]

    def submit(self, window: Window) -> Pending:
        """Tokenize a window and hand its batches to the forward threads. Bad rows go to its rejects."""
        choices = self._choices_of_rows(window)
        fields = self.request.fields
        pairs = [(record[fields.query], record[fields.title]) for record in window.records]
        passes = [
            [self._start(group, [pairs[row] for row in group.rows]) for group in groups] for groups in choices
        ]
        return Pending(window, passes)

    def finish(self, pending: Pending) -> list[Result]:
        """Wait for a window's batches and return the scores, by output column.

        Rows whose logits are not finite go to the window's rejects, so the results fit what is left.
        """
        window = pending.window
        size = len(window.records)
        results = []
        broken: set[int] = set()
        for passes in pending.passes:
            parts = [(one.group.rows, *self._collect(one)) for one in passes]
            for rows, _, finite in parts:
                broken.update(row for row, good in zip(rows, finite, strict=True) if not good)
            results.append(_joined(size, [(rows, result) for rows, result, _ in parts]))
        if broken:
            window.set_aside(dict.fromkeys(broken, "the model gives no finite score"))
            kept = [row for row in range(size) if row not in broken]
            results = [_taken(result, kept) for result in results]
        return results

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _choices_of_rows(self, window: Window) -> list[list[_Group]]:
        """Return by output column which rows share their choice; rows with a wrong one are set aside."""
        fields = self.request.fields
        if fields.mask is None and fields.variant is None:
            everything = list(range(len(window.records)))
            return [[_Group(choice, everything)] if everything else [] for choice in self.choices]
        wrong: dict[int, str] = {}
        for place, record in enumerate(window.records):
            for column in self.request.columns:
                try:
                    self._choice(column, record)
                except (ModelError, InvalidRequest) as error:
                    wrong[place] = str(error)
        window.set_aside(wrong)
        return [
            _grouped([self._choice(column, record) for record in window.records])
            for column in self.request.columns
        ]

    def _choice(self, column: Column, record: Mapping[str, Any]) -> Choice:
        fields = self.request.fields
        variant = column.variant if fields.variant is None else record.get(fields.variant) or None
        mask = column.mask if fields.mask is None else record.get(fields.mask) or None
        for name, value in ((fields.variant, variant), (fields.mask, mask)):
            if name is not None and value is not None and not isinstance(value, str):
                raise ModelError(f"{name} is not text")
        return self.catalog.choose(variant, mask, with_units=fields.mask is None)

    def _start(self, group: _Group, pairs: Sequence[tuple[str, str]]) -> _Passes:
        classifier = group.choice.variant.classifier
        chunked: list[ChunkedPair] = []
        if self.request.overflow == "chunks":
            chunked = encode_chunks(classifier.tokenizer, pairs, LongTitles("chunks"))
            encoded = [row for pair in chunked for row in pair.rows]
            owner = [place for place, pair in enumerate(chunked) for _ in pair.rows]
        else:
            encoded, owner = classifier.tokenizer.encode(pairs), list(range(len(pairs)))
        passes = _Passes(group, chunked, encoded)
        for rows in batches_by_length([len(pair) for pair in encoded], self.batch_tokens):
            batch = [encoded[row] for row in rows]
            masks = None if group.masks is None else [group.masks[owner[row]] for row in rows]
            passes.batches.append((rows, self.pool.submit(self._forward, group.choice, batch, masks)))
        return passes

    def _forward(
        self, choice: Choice, batch: Sequence[EncodedPair], masks: Sequence[Any] | None
    ) -> np.ndarray:
        """Return the logits of a batch, (n, labels). After a full memory, later ones are smaller."""

        def run(rows: Sequence[int]) -> np.ndarray:
            part = [batch[row] for row in rows]
            try:
                return forward(choice, part, None if masks is None else [masks[row] for row in rows])
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    self.batch_tokens = min(self.batch_tokens, sum(map(len, part)) // 2)
                raise

        return in_halves(run, range(len(batch)), self.device)

    def _collect(self, passes: _Passes) -> tuple[Result, list[bool]]:
        classifier = passes.group.choice.variant.classifier
        logits = np.empty((len(passes.encoded), len(classifier.config.labels)), np.float32)
        for rows, future in passes.batches:
            logits[rows] = future.result()
        chunks: list[Chunk | None] | None = None
        truncated = [pair.truncated for pair in passes.encoded]
        if passes.chunks:
            best, chunks = best_chunks(classifier.scores(logits).raw_score.tolist(), passes.chunks)
            logits = logits[best]
            truncated = [pair.truncated for pair in passes.chunks]
        finite: np.ndarray = np.asarray(np.isfinite(logits).all(axis=1))
        scores = classifier.scores(np.where(finite[:, None], logits, 0))
        count = len(logits)
        if not classifier.grades:
            nothing: list[Any] = [None] * count
            result = Result(scores.score, nothing, nothing, nothing, nothing, truncated, chunks)
        else:
            labels: list[str | None] = [classifier.grades[grade] for grade in scores.grade.tolist()]
            result = Result(
                scores.score,
                scores.grade,
                labels,
                scores.expected_grade,
                scores.probabilities,
                truncated,
                chunks,
            )
        return result, finite.tolist()


def forward(choice: Choice, batch: Sequence[EncodedPair], masks: Sequence[Any] | None) -> np.ndarray:
    """Return the logits of one pass, (n, labels).

    A mask that all rows share is cut out at once (`sliced`): left to itself, the network cuts a mask out
    when it comes for the second time, and a job that goes on would not have the bits of the first time.
    With a mask for each row, a row more that keeps every head sees to it that nothing is cut.
    """
    classifier = choice.variant.classifier
    if masks is None:
        mask = choice.mask
        return classifier.forward(batch, None if mask.is_none else RowMasks.of(mask), sliced=True)
    with_all_on = RowMasks.of([*masks, classifier.all_heads])
    return classifier.forward([*batch, batch[0]], with_all_on)[:-1]


def _grouped(choices: Sequence[Choice]) -> list[_Group]:
    """Put rows with the same variant and mask into a group; those of rare masks share one per checkpoint."""
    by_choice: dict[tuple[str, str], _Group] = {}
    for row, choice in enumerate(choices):
        by_choice.setdefault((choice.variant.checkpoint, choice.mask.id), _Group(choice, [])).rows.append(row)
    groups: list[_Group] = []
    mixed: dict[str, _Group] = {}
    for (checkpoint, _), group in by_choice.items():
        if len(group.rows) >= SLICED_ROWS:
            groups.append(group)
            continue
        shared = mixed.setdefault(checkpoint, _Group(group.choice, [], []))
        assert shared.masks is not None
        shared.rows += group.rows
        shared.masks += [group.choice.mask] * len(group.rows)
    return [*groups, *mixed.values()]


def _joined(size: int, parts: Sequence[tuple[list[int], Result]]) -> Result:
    """Put the results of groups of rows back into the order of the rows."""
    if len(parts) == 1 and parts[0][0] == list(range(size)):
        return parts[0][1]
    whole = Result(*([None] * size for _ in range(6)), chunk=None)  # type: ignore[arg-type, misc]
    for rows, result in parts:
        if result.chunk is not None and whole.chunk is None:
            whole.chunk = [None] * size
        for name in Result.__slots__:
            values, target = getattr(result, name), getattr(whole, name)
            for row, value in zip(rows, values, strict=True) if values is not None else ():
                target[row] = value
    return whole


def _taken(result: Result, rows: list[int]) -> Result:
    """Return the results of some rows."""
    taken: list[Any] = []
    for name in Result.__slots__:
        values = getattr(result, name)
        if isinstance(values, np.ndarray):
            taken.append(values[rows])
        else:
            taken.append(None if values is None else [values[row] for row in rows])
    return Result(*taken)
