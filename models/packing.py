"""Packs sequences of different lengths end to end, without padding, for one forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from models.tokenizer import EncodedPair

ROW_MULTIPLE = 16
"""Packs hold a multiple of this many tokens. Products with fewer rows may take other code paths and round
differently (seen on CPUs: up to 11 rows for MKL, 1 for oneDNN), which a deterministic encoder must not."""

FINEST = 1 / 32
"""Packs are filled up in steps of about this share of their tokens, because a product of a new shape is dear:
oneDNN compiles code for it (0.4 to 0.8 ms, of which one pass of the shipped model needs a dozen) and keeps it
(half a MiB), and a CUDA graph is one of its shape."""

LENGTH_STEP = 16
"""Sequences within this many tokens of each other share one attention call, at a multiple of this length."""

PROBLEM_SHARE = 1 / 8
"""An attention call's number of problems (sequences × heads) is filled up in steps of about this share, for
the same reason; calls of layers with fewer heads then share their shapes with those of others."""

LONGEST_STEP = 64
"""The longest sequence is given in this step to a varlen kernel, whose launch depends on it."""

QUERY_STEP = 32
"""Attention's queries are filled up to a multiple of this: torch's softmax over the keys then works on whole
vectors of queries (64 sequences of 25 tokens, 12 heads, bfloat16, one core: 0.5 ms; over single rows 2.8)."""

SCORES_AT_ONCE = 1 << 17
"""Most keys × queries of one attention call, over its sequences: bounds the memory of their scores and keeps
them near the processor (64 documents of 128 tokens, shipped model, two cores: 0.43 s; with four times as many
at once 0.51 to 0.68)."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Neighbouring sequences of similar length, attended to in one call.

    Tokens [start, stop) of the pack are the `count` sequences from `first` on, of at most `length` tokens.
    lengths: (count,) numpy int64.
    """

    first: int
    start: int
    stop: int
    count: int
    length: int
    lengths: np.ndarray


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """A group as the attention core computes it: a problem for each of its `count` sequences and h heads.

    problems: count·h or more; those after them are computed and not read.
    absent: which of the problems·keys rows of the scores (keys × queries) are no token; None where all are.
    """

    first: int
    count: int
    problems: int
    keys: int
    queries: int
    absent: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """How a projection to h heads is taken apart for attention, and put together again.

    gather: rows of the projection seen as (T·3·h, d_head): for each block its queries (problems, queries),
        then its keys and values (problems, keys each); places beyond a sequence's end repeat its last token.
    scatter: (T·h,), where each token's heads lie among the `places` results, (problems, queries) a block;
        anywhere for tokens of no sequence.
    Both int64.
    exact: no group was filled up, neither its sequences nor their number.
    """

    heads: int
    places: int
    gather: Tensor
    scatter: Tensor
    blocks: tuple[AttentionBlock, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of B sequences, shortest first, on the device of the network.

    A filled pack has more: tokens after the last sequence, which attend to nothing, and first tokens of no
    sequence. What the network makes of them is never read.

    ids, positions, segments: (T or more,) int64. row_of_token: the sequence of each token, the same shape.
    first_token: (B or more,) int64, where each sequence's [CLS] stands.
    offsets: (one more than first_token,) int32, where sequences begin and end; any after B are empty.
    max_length: no sequence is longer; in steps, too, where the pack is filled.
    order: (B,) numpy int64, the caller's index of each packed sequence.
    rows: B.
    exact: attention is computed sequence by sequence at its own length, as a deterministic encoder needs it.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    row_of_token: Tensor
    first_token: Tensor
    offsets: Tensor
    order: np.ndarray
    groups: tuple[AttentionGroup, ...]
    max_length: int
    rows: int
    exact: bool
    _layouts: dict[int, AttentionLayout] = field(default_factory=dict, repr=False)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a varlen kernel's forward pass reads of the pack."""
        return self.ids, self.positions, self.segments, self.row_of_token, self.first_token, self.offsets

    def holding(self, tensors: Sequence[Tensor]) -> PackedBatch:
        """The pack with other tensors, of the same shapes, for the ones of `tensors`."""
        ids, positions, segments, row_of_token, first_token, offsets = tensors
        return replace(
            self,
            ids=ids,
            positions=positions,
            segments=segments,
            row_of_token=row_of_token,
            first_token=first_token,
            offsets=offsets,
        )

    def layout(self, heads: int) -> AttentionLayout:
        """The layout for layers that compute this many heads; made at the first call."""
        if heads not in self._layouts:
            self._layouts[heads] = lay_out(
                self.groups, heads, self.ids.device, tokens=self.ids.shape[0], exact=self.exact
            )
        return self._layouts[heads]


def pack(
    pairs: Sequence[EncodedPair],
    *,
    device: torch.device,
    deterministic: bool = False,
    fill: bool = True,
) -> PackedBatch:
    """Packs at least one encoded pair.

    deterministic: sequences share an attention call only at equal lengths, so that no result depends on the
        neighbours. fill: to a number of tokens, and of first tokens, that comes again (`filled_size`).
    """
    lengths = np.fromiter((len(pair) for pair in pairs), np.int64, len(pairs))
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    segments = [pairs[i] for i in order]
    query_lengths = np.fromiter((pair.first_segment for pair in segments), np.int64, len(pairs))
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(offsets[-1]) - offsets[row_of_token]
    tokens, firsts = len(positions), len(lengths)
    if fill:
        tokens, firsts = filled_size(tokens), filled_size(firsts)
    ids, position, segment, row, first_token, ends = _moved(
        [
            _filled(np.concatenate([pair.ids for pair in segments]), tokens),
            _filled(positions, tokens),
            _filled(positions >= query_lengths[row_of_token], tokens),
            _filled(row_of_token, tokens),
            _filled(offsets[:-1], firsts),
            _filled(offsets, firsts + 1, offsets[-1]),
        ],
        device,
    )
    longest = int(lengths.max())
    return PackedBatch(
        ids=ids,
        positions=position,
        segments=segment,
        row_of_token=row,
        first_token=first_token,
        offsets=ends.int(),
        order=order,
        groups=tuple(group_by_length(lengths, 1 if deterministic else LENGTH_STEP)),
        max_length=_up(longest, LONGEST_STEP) if fill else longest,
        rows=len(pairs),
        exact=deterministic,
    )


def _filled(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """The array as int64 with `value` up to `size`."""
    out = np.full(size, value, np.int64)
    out[: len(array)] = array
    return out


def _moved(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Arrays of int64 on the device, all in one transfer that nobody waits for."""
    sizes = [len(array) for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=host.numpy())
    return torch.split(host.to(device, non_blocking=True), sizes)


def filled_size(count: int) -> int:
    """The least multiple of ROW_MULTIPLE, in steps of FINEST of itself, that is at least `count`."""
    return _up(count, max(ROW_MULTIPLE, _step(count, FINEST)))


def _step(count: int, share: float) -> int:
    """The largest power of two that is at most `share` of `count`; at least 1."""
    return 1 << max(0, int(count * share).bit_length() - 1)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def group_by_length(lengths: np.ndarray, step: int) -> list[AttentionGroup]:
    """Cuts a pack into groups of neighbours whose lengths round up to the same multiple of `step`.

    lengths: (B,) in the order of the pack.
    """
    groups: list[AttentionGroup] = []
    classes = -(-lengths // step)
    borders = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(lengths)]
    start = 0
    for begin, end in itertools.pairwise(borders):
        most = max(1, SCORES_AT_ONCE // (int(classes[begin]) * step) ** 2)
        for first in range(begin, end, most):
            chosen = lengths[first : min(first + most, end)]
            stop = start + int(chosen.sum())
            groups.append(AttentionGroup(first, start, stop, len(chosen), int(chosen.max()), chosen))
            start = stop
    return groups


def padded_tokens(start: int, lengths: np.ndarray, width: int) -> np.ndarray:
    """The token of each of `width` places of each sequence, the last one repeated. Returns (count, width)."""
    firsts = start + np.cumsum(lengths) - lengths
    tokens: np.ndarray = firsts[:, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
    return tokens


def lay_out(
    groups: Sequence[AttentionGroup], heads: int, device: torch.device, *, tokens: int, exact: bool
) -> AttentionLayout:
    """The layout for `heads` heads of these groups, which make up a pack of `tokens` tokens."""
    gathers, scatters, blocks = [], [], []
    places = 0
    head = np.arange(heads)
    for group in groups:
        lengths, keys, queries = group.lengths, group.length, group.length
        problems = group.count * heads
        if not exact:
            problems, keys = _up(problems, _step(problems, PROBLEM_SHARE)), _up(keys, LENGTH_STEP)
            queries = _up(keys, QUERY_STEP)
        source = np.minimum(np.arange(problems), group.count * heads - 1)  # fills up with the last problem
        for part, width in enumerate((queries, keys, keys)):
            row = padded_tokens(group.start, lengths, width) * (3 * heads) + part * heads
            of_problem = (row[:, None, :] + head[:, None]).reshape(-1, width)
            gathers.append(of_problem[source].reshape(-1))
        exists = np.arange(keys) < lengths[:, None]  # (sequences, keys)
        sequence, place = np.nonzero(exists)
        result = places + sequence * (heads * queries) + place
        scatters.append((result[:, None] + head * queries).reshape(-1))
        absent = None
        if not exists.all():
            absent = torch.from_numpy(np.flatnonzero(~exists[source // heads])).to(device)
        blocks.append(AttentionBlock(group.first, group.count, problems, keys, queries, absent))
        places += problems * queries
    of_no_sequence = tokens - groups[-1].stop
    scatters.append(np.zeros(of_no_sequence * heads, np.int64))
    return AttentionLayout(
        heads,
        places,
        torch.from_numpy(np.concatenate(gathers)).to(device),
        torch.from_numpy(np.concatenate(scatters)).to(device),
        tuple(blocks),
        exact,
    )
