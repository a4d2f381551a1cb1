"""The forward threads: run the batches that the scheduler forms, off the event loop.

A CPU has one thread per core, and batches run side by side on one core each. That does far more than one
batch at a time on all cores, whose threads wait for each other at every product
(docs/decisions/005-side-by-side.md). A batch that is alone gets all cores, on a thread of its own. A GPU has
two threads, each with a stream of its own: while one waits for its batch's scores, the other packs the next
batch and sends it over.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.device import is_device_failure, is_out_of_memory
from headroom.models.generate.generator import Alignment, Ask, GeneratedQuery
from headroom.models.masks.head_mask import HeadMask
from headroom.models.selection import RowMasks
from headroom.service.engine.request import Row, added_tokens
from headroom.service.engine.runner import GPU_SLOTS, Batch
from headroom.service.errors import DeviceFailed, InferenceFailed, OutOfMemory


@dataclass(frozen=True, slots=True)
class Lane:
    """The network that the rows of a batch share, and what their masks have in common.

    structure: the `HeadMask.structure` of all rows; each row may have its own weights of heads.
    sliced_mask: the id of the mask that all rows have, and under which what is off is cut out of the weights;
        None: heads that are off are multiplied by 0.
    kind: "score", "attention", or "generate" for rows of `QuestionRow`.
    """

    classifier: Classifier
    structure: bytes = b""
    sliced_mask: str | None = None
    kind: str = "score"


@dataclass(slots=True, eq=False)
class PairRow(Row):
    """A pair to score under a mask, or whose attention is wanted for some heads, as (layer, head)."""

    lane: Lane
    pair: EncodedPair
    mask: HeadMask
    heads: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class QuestionRow(PairRow):
    """A question to write queries for; with `heads`, the maps of the best one over the question, too."""

    ask: Ask = field(kw_only=True)


class RowQueries(NamedTuple):
    """The result of a `QuestionRow`: queries, best first. alignment: None unless it was asked for."""

    queries: Sequence[GeneratedQuery]
    alignment: Alignment | None


def mark_prefixes(rows: Sequence[PairRow]) -> None:
    """Set the prefixes that a decoder's rows share within a lane and mask; an encoder's rows share none."""
    classifier = rows[0].lane.classifier
    if classifier.config.decoder is None:
        return
    keys = ((row.lane, id(row.mask)) for row in rows)
    prefixes = classifier.beginnings((row.pair for row in rows), keys)
    if prefixes is not None:
        for row, prefix in zip(rows, prefixes, strict=True):
            row.prefix = prefix


class RowScore(NamedTuple):
    """The result of a row that is scored. A one-label cross-encoder gives a score and no grades.

    raw_score: what ranks titles, see `Scores`. logits: (labels,) float32. probabilities: (grades,) float32.
    """

    score: np.float32
    raw_score: float
    logits: np.ndarray
    grade: int | None = None
    expected_grade: np.float32 | None = None
    probabilities: np.ndarray | None = None


SPLIT_TOKENS = 128
"""Minimum tokens of a batch if what waits is split over slots: a smaller one would be mostly overhead."""

HANGS_AFTER_S = 60.0
"""Minimum time after which a forward pass counts as hung: nobody waits longer for an answer by default."""
WARM_UP_HANGS_AFTER_S = 300.0
"""Time after which a pass of a warm-up counts as hung: its rate is not known yet."""
HANGS_AFTER_TIMES = 50.0
"""A pass counts as hung only after this many times the duration that follows from the warm-up's rate.
Attention over a text of 8,192 tokens takes several times as long for each token as the warm-up's short texts,
and more beside other work."""

logger = logging.getLogger("headroom.engine")


class Engine:
    """Owns the networks and the threads that run them.

    classifiers: those of the live config, at least one, by checkpoint key; may be replaced while it runs. One
        that is no longer among them serves the requests whose lanes refer to it.
    threads: torch threads of the forward pass on a CPU.
    on_failure: called with the kind when the device fails; from then on nothing runs any more.
    failed_kind: that kind; None while the device works.
    tokens_per_second: the rate of the live config's default variant, from its warm-up; None before it.
    batch_tokens: the largest batch for which the device had memory in the first warm-up; None before it.
    device_type: cpu or cuda. slots: how many batches may be under way at once; split_tokens: minimum
        tokens of a batch if what waits is shared among slots; None: it is not shared.
    """

    def __init__(
        self, classifiers: dict[str, Classifier], *, threads: int, on_failure: Callable[[str], None]
    ) -> None:
        self.classifiers = classifiers
        self._on_failure = on_failure
        self._hangs_at: dict[Future[Sequence[Any]], float] = {}  # of each pass under way
        self.failed_kind: str | None = None
        self.tokens_per_second: float | None = None
        self.batch_tokens: int | None = None
        device = next(iter(classifiers.values())).network.device  # all are on one
        self.device_type = device.type
        self.split_tokens: int | None = None
        if device.type == "cuda":
            self.slots = GPU_SLOTS
            self._wide = self._narrow = forward_pool(self.slots, threads, device)
        else:
            self.slots = threads
            self.split_tokens = SPLIT_TOKENS
            self._wide = forward_pool(1, threads, device)
            self._narrow = forward_pool(self.slots, 1, device) if self.slots > 1 else self._wide

    async def run(self, batch: Batch) -> Sequence[Any]:
        """Return a RowScore, an attention map or an exception for each row of a batch.

        Raises OutOfMemory (smaller batches may fit) and DeviceFailed (nothing will).
        """
        assert isinstance(batch.lane, Lane)
        rows = cast(Sequence[PairRow], batch.rows)
        exact = batch.lane.classifier.network.deterministic
        pool = self._wide if batch.alone and not exact else self._narrow  # sums may depend on the threads
        limit_s = HANGS_AFTER_S
        if self.tokens_per_second is not None:
            limit_s = max(limit_s, HANGS_AFTER_TIMES * self.slots * batch.tokens / self.tokens_per_second)
        return await asyncio.wrap_future(self._submit(pool, batch.lane, rows, limit_s))

    def _submit(
        self, pool: ThreadPoolExecutor, lane: Lane, rows: Sequence[PairRow], limit_s: float
    ) -> Future[Sequence[Any]]:
        """Begin a pass, which counts as hung if it has not ended after `limit_s`."""
        forward_pass = pool.submit(self._forward, lane, rows)
        self._hangs_at[forward_pass] = time.monotonic() + limit_s
        forward_pass.add_done_callback(lambda ended: self._hangs_at.pop(ended, None))
        return forward_pass

    @property
    def hangs(self) -> bool:
        """Whether a forward pass takes so much longer than it should that it will never end."""
        now = time.monotonic()
        return any(now > hangs_at for hangs_at in list(self._hangs_at.values()))

    def warm_up(self, lane: Lane, batch_tokens: int, mask: HeadMask) -> tuple[float, int]:
        """Capture a lane's CUDA graphs and run its smallest and largest batch: no request pays for first use.

        Return the rate of the last one, in tokens per second, and the tokens of the largest batch: half of
        `batch_tokens`, a quarter and so on if the device has no memory for more.
        Raises OutOfMemory if one pair does not fit, DeviceFailed, and TimeoutError if a pass hangs.
        """
        network = lane.classifier.network
        network.capture(batch_tokens, RowMasks.of(mask), sliced=lane.sliced_mask is not None)
        pair = lane.classifier.tokenizer.encode([("warm up", "a title of usual length to warm up with")])[0]
        row = PairRow(len(pair), lane, pair, mask)
        mark_prefixes([row])
        while True:
            had_graphs = bool(network.ladder)
            try:
                return self._warm_up(row, batch_tokens), batch_tokens
            except OutOfMemory:
                if had_graphs and not network.ladder:  # their memory is free now
                    continue
                if batch_tokens <= len(pair):
                    raise
            batch_tokens //= 2
            logger.warning("the device's memory is full; batches of %d tokens are tried", batch_tokens)

    def _warm_up(self, row: PairRow, batch_tokens: int) -> float:
        """Run both batches on every thread, and return the rate of the last.

        The smallest runs twice: the weights of a set of live heads are sliced when the set comes a second
        time. On a GPU so does the largest, because kernels are compiled at the first.
        """
        first, further = added_tokens([row, row])  # a further row shares the prefix of the first
        largest = 1 + max(0, batch_tokens - first) // further
        counts = [1, 1, largest] if self.device_type == "cpu" else [1, largest, 1, largest]
        rate = 0.0
        if self._wide is not self._narrow:
            for count in counts:
                self._warm_up_pool(self._wide, 1, [row] * count)
        for count in counts:
            rate = self._warm_up_pool(self._narrow, self.slots, [row] * count)
        return rate

    def _warm_up_pool(self, pool: ThreadPoolExecutor, slots: int, batch: Sequence[PairRow]) -> float:
        """Run one batch on each thread of a pool at once, and return the rate in tokens per second."""
        began = time.monotonic()
        passes = [self._submit(pool, batch[0].lane, batch, WARM_UP_HANGS_AFTER_S) for _ in range(slots)]
        for hanging in wait(passes, WARM_UP_HANGS_AFTER_S).not_done:
            hanging.cancel()
            raise TimeoutError(
                f"a warm-up pass of {len(batch)} pairs did not end within {WARM_UP_HANGS_AFTER_S:.0f} s"
            )
        for forward_pass in passes:
            forward_pass.result()
        return slots * sum(added_tokens(batch)) / (time.monotonic() - began)

    def close(self) -> None:
        """End the threads after the batches in hand."""
        self._wide.shutdown(wait=True)
        self._narrow.shutdown(wait=True)

    def _forward(self, lane: Lane, rows: Sequence[PairRow]) -> Sequence[Any]:
        classifier = lane.classifier
        if self.failed_kind is not None:
            raise DeviceFailed(self.failed_kind)
        try:
            if lane.kind == "generate":
                return row_queries(classifier, cast(Sequence[QuestionRow], rows))
            if lane.kind == "attention":
                return [classifier.attention_maps(row.pair, row.heads, row.mask) for row in rows]
            masks = RowMasks.of([row.mask for row in rows])
            logits = classifier.forward(
                [row.pair for row in rows], masks, sliced=lane.sliced_mask is not None
            )
            return row_scores(classifier, logits)
        except (RuntimeError, MemoryError) as error:
            if is_device_failure(error, classifier.network.device):
                self.failed_kind = "cuda"
                self._on_failure(self.failed_kind)
                raise DeviceFailed(self.failed_kind) from error
            if not is_out_of_memory(error):
                raise
        # Here the error is gone, and with it its traceback, whose frames hold the batch's tensors.
        if classifier.network.device.type == "cuda":
            torch.cuda.empty_cache()  # cuBLAS allocates beside torch's cache
        raise OutOfMemory


def forward_pool(size: int, torch_threads: int, device: torch.device) -> ThreadPoolExecutor:
    """Start `size` threads, for passes that use `torch_threads` torch threads each.

    Raises the error of a thread that cannot be prepared.
    """
    prepared = threading.Barrier(size)

    def prepare() -> None:
        """Set up the thread that runs this, and wait for the others."""
        try:
            torch.set_num_threads(torch_threads)
            if device.type == "cuda":
                torch.cuda.set_device(device)
                torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        except BaseException:
            prepared.abort()
            raise
        prepared.wait()  # so that each thread runs this once

    pool = ThreadPoolExecutor(size, thread_name_prefix="forward")
    begun = [pool.submit(prepare) for _ in range(size)]
    for error in [future.exception() for future in begun]:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            pool.shutdown()
            raise error
    return pool


def row_scores(classifier: Classifier, logits: np.ndarray) -> list[RowScore | Exception]:
    """Return the scores of logits, (rows, labels) float32; an error for a row that is not finite."""
    scores = classifier.scores(logits)
    columns: list[Any] = [scores.score, scores.raw_score.tolist(), scores.logits]
    if classifier.grades:
        columns += [scores.grade.tolist(), scores.expected_grade, scores.probabilities]
    results: list[RowScore | Exception] = [RowScore(*row) for row in zip(*columns, strict=True)]
    for index in np.flatnonzero(~np.isfinite(logits).all(axis=1)):
        results[index] = InferenceFailed()
    return results


def row_queries(classifier: Classifier, rows: Sequence[QuestionRow]) -> list[RowQueries]:
    """Return the queries of questions, best first, with the attention of the best one where it is wanted."""
    generator = classifier.checked_generator()
    results = []
    for row, written in zip(rows, classifier.write_queries([row.ask for row in rows]), strict=True):
        alignment = generator.align(row.ask, written[0]) if row.heads else None
        results.append(RowQueries(generator.readable_queries(written), alignment))
    return results
