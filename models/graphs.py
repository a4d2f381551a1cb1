"""CUDA graphs: passes of a few fixed shapes are captured before traffic, and then launched with one call.

A pass is over a hundred short kernels. For a few pairs, or with half of the heads cut out, Python takes
longer to launch them than the GPU to compute them (docs/decisions/012-on-a-gpu.md).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headroom.models.batch import PackedBatch, Rung, filled_size, rung_of
from headroom.models.errors import first_line
from headroom.models.selection import RowMasks, Selection, Selector

log = logging.getLogger(__name__)

SMALL = (16, 32, 64, 128, 256, 512)
"""Tokens that small packs are filled up to. It costs no time: they do not keep a GPU busy."""

MEDIUM = (768, 1_024, 1_536, 2_048, 3_072, 4_096)
"""The same for larger packs, whose launches may still take longer than what the GPU computes in vain."""

TOKENS_OF_ROW = 8
"""Tokens per row of these rungs: packs of shorter pairs than this, on average, have no graph."""

TOKENS_OF_FULL_ROW = 16
"""The same for full batches, where the rows that a pack does not have cost some time."""

LONGEST = (64, 128)
"""A graph of over 512 tokens computes sequences of at most this many. It launches attention for all sequences
as if each had so many, so passes with longer ones have no graph."""

FULL_SHARE = 31 / 32
"""Packs with more than this share of a batch's maximum tokens count as full batches."""

Compute = Callable[[PackedBatch, Selection], Tensor]
"""Returns the answers of a batch, (pairs or more, labels). It launches the same kernels for all batches of a
rung, and waits for nothing."""

WHOLE: tuple[Hashable, ...] = (None, ((), None, None))
"""The `mask_key` of no masks, and that of masks that multiply all heads."""

_launching = threading.Lock()
"""Held to capture, or to launch: torch captures one graph at a time in a process."""

_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed: torch's allocator may refer to them for longer than their network lives."""


def ladder_for(batch_tokens: int) -> tuple[Rung, ...]:
    """Return the shapes to capture, smallest first, for batches of at most this many tokens."""
    full = filled_size(batch_tokens)
    rungs = list[Rung]()
    above = 0
    for tokens in (*SMALL, *MEDIUM):
        if tokens >= full:
            break
        rows = filled_size(tokens // TOKENS_OF_ROW)
        longest = tokens if tokens <= SMALL[-1] else LONGEST[-1]
        rungs.append(Rung(tokens, rows, longest, above))
        above = tokens
    above = max(above, int(full * FULL_SHARE))
    full_rows = filled_size(full // TOKENS_OF_FULL_ROW)
    for bound in LONGEST:
        rungs.append(Rung(full, full_rows, bound, above))
    return tuple(rungs)


def by_graph(lengths: Sequence[int], ladder: Sequence[Rung]) -> list[Sequence[int]]:
    """Return which sequences to compute together, so that one long title costs the others no graph.

    lengths: of the sequences. If all together have no graph, but those of at most `LONGEST` tokens have one
    and the longer ones another, the two are returned apart. A full batch gains less by its graph than a
    second one costs.
    """
    rows = range(len(lengths))
    if max(lengths) <= LONGEST[-1] or sum(lengths) > MEDIUM[-1] or _has_graph(lengths, ladder):
        return [rows]
    parts: list[Sequence[int]] = [
        [row for row in rows if lengths[row] <= LONGEST[-1]],
        [row for row in rows if lengths[row] > LONGEST[-1]],
    ]
    if all(_has_graph([lengths[row] for row in part], ladder) for part in parts):
        return parts
    return [rows]


def _has_graph(lengths: Sequence[int], ladder: Sequence[Rung]) -> bool:
    return len(lengths) > 0 and rung_of(ladder, sum(lengths), len(lengths), max(lengths)) is not None


def mask_key(masks: RowMasks | None, *, sliced: bool) -> Hashable:
    """Return what a graph depends on of a batch's masks: not the weights of heads, unless they are sliced.

    sliced: the masks belong to a sliced variant.
    """
    if masks is None:
        return None
    units = None if masks.units_off is None else masks.units_off.tobytes()
    return masks.skipped, units, masks.weights.tobytes() if sliced else None


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured pass: it reads batch and weights, and writes logits, at fixed addresses.

    selection: what the pass computes with; its memory must live as long as the graph.
    head_weights: (rows, n) float32, an input of the graph; None if it has no such input.
    """

    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    selection: Selection
    head_weights: Tensor | None
    logits: Tensor

    def set_inputs(self, batch: PackedBatch, head_weights: Tensor | None) -> None:
        """Copy another batch of the rung to where the graph reads it, with its weights; None: all are 1."""
        self.batch.inputs.copy_(batch.inputs)
        if self.head_weights is None:
            return
        if head_weights is None:
            self.head_weights.fill_(1)
        elif len(head_weights) == 1:
            self.head_weights.copy_(head_weights)
        else:
            self.head_weights[: len(head_weights)].copy_(head_weights)


class Graphs:
    """The graphs of one network on its GPU: one per rung of the ladder and `mask_key` that was captured.

    All share one pool of memory, so one runs at a time: the GPU begins a graph when the one before it has
    ended. Once a capture has failed, or a pass has found no memory, there are none.

    ladder: the shapes that are captured; none before `capture`.
    """

    def __init__(self, device: torch.device, selector: Selector) -> None:
        self.ladder: tuple[Rung, ...] = ()
        self._device = device
        self._selector = selector
        self._graphs: dict[tuple[Rung, Hashable], Captured] = {}
        self._enabled = True
        self._pool = torch.cuda.graph_pool_handle()
        # torch has 32 streams of each priority and gives them out in turn: with the usual one, this might be
        # the stream on which another thread computes.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._launched = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self, compute: Compute, masks: RowMasks | None, *, sliced: bool, batch_tokens: int) -> None:
        """Capture the ladder for one `mask_key`, unless it is there. Call it in inference mode.

        batch_tokens: the maximum of a batch; the first call's counts.
        """
        key = mask_key(masks, sliced=sliced)
        ladder = self.ladder or ladder_for(batch_tokens)
        try:
            # The outer stream's context also brings the thread back to its stream if a capture fails.
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                for rung in reversed(ladder):  # the smaller ones use the memory of the largest
                    self._capture(compute, rung, key, masks, sliced=sliced)
        except (RuntimeError, MemoryError) as error:
            self.drop(f"a capture failed: {first_line(error)}")
        with _launching:
            if self._enabled:
                self.ladder = ladder

    def _capture(
        self, compute: Compute, rung: Rung, key: Hashable, masks: RowMasks | None, *, sliced: bool
    ) -> None:
        with _launching:
            if not self._enabled or (rung, key) in self._graphs:
                return
            selection = self._selector.select(masks, slicing="at once" if sliced else "never")
            head_weights = None
            if selection.head_weights is not None and not sliced:
                head_weights = selection.head_weights.new_ones(rung.rows, selection.head_weights.shape[1])
                selection = replace(selection, head_weights=head_weights)
            batch = PackedBatch.to_capture(rung, self._device)
            graph = torch.cuda.CUDAGraph()
            try:
                self._launched.wait(self._stream)
                compute(batch, selection)  # kernels are compiled and loaded outside the capture
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    logits = compute(batch, selection)
                graph.replay()  # the first launch takes memory
                self._launched.record(self._stream)
            except BaseException:
                graph.reset()  # or it would keep the pool, if its capture had ended
                _failed.append(graph)
                raise
            self._graphs[rung, key] = Captured(graph, batch, selection, head_weights, logits)

    def ladder_of(self, masks: RowMasks | None, *, sliced: bool) -> Sequence[Rung]:
        """Return the shapes of which there are graphs for these masks."""
        ladder = self.ladder  # another thread may drop it
        if not ladder or (ladder[0], mask_key(masks, sliced=sliced)) not in self._graphs:
            return ()
        return ladder

    def logits(self, batch: PackedBatch, masks: RowMasks | None, *, sliced: bool) -> Tensor | None:
        """Return the logits of a pack's answers, (pairs or more, labels).

        None: the caller computes them, because there is no graph.
        """
        if batch.rung is None:
            return None
        captured = self._graphs.get((batch.rung, mask_key(masks, sliced=sliced)))
        if captured is None:
            return None
        head_weights = None
        if captured.head_weights is not None:
            head_weights = self._selector.select(masks, batch.order, "never").head_weights
        with _launching:
            stream = torch.cuda.current_stream(self._device)
            self._launched.wait(stream)
            captured.set_inputs(batch, head_weights)
            captured.graph.replay()
            logits = captured.logits.clone()  # the next launch writes over them
            self._launched.record(stream)
        return logits

    def keep(self, masks: Iterable[tuple[RowMasks | None, bool]]) -> None:
        """Drop the graphs of all but these masks; those of the whole network stay.

        masks: each with whether it is a sliced variant's.
        """
        keys = {*WHOLE, *(mask_key(one, sliced=is_sliced) for one, is_sliced in masks)}
        with _launching:
            self._launched.synchronize()
            self._graphs = {key: graph for key, graph in self._graphs.items() if key[1] in keys}

    def drop(self, reason: str) -> None:
        """Compute all later passes without graphs, and log the reason once."""
        with _launching:
            if not self._enabled:
                return
            self._enabled = False
            self.ladder = ()
            self._launched.synchronize()
            self._graphs.clear()
        log.warning("passes are computed without CUDA graphs, because %s", reason)
