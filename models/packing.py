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
"""Deterministic packs hold a multiple of this many tokens: matrix products with fewer rows take other
code paths and round differently (seen on CPUs: up to 11 rows for MKL, 1 row for oneDNN)."""

LENGTH_STEP = 16
"""Sequences within this many tokens of each other share one attention call."""

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
    Where all are of that length, gather, scatter and bias are None: the group is a plain view of the pack.

    lengths: (count,) numpy int64.
    gather: (count·length,) int64, the token of each padded place (a repeated one for padding).
    scatter: (stop − start,) int64, the padded place of each token.
    bias: (count, 1, 1, length), 0 for keys that exist and −inf for padding.
    """

    first: int
    start: int
    stop: int
    count: int
    length: int
    lengths: np.ndarray
    gather: Tensor | None = None
    scatter: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """A group as the attention core computes it: count·h problems, one for each sequence and head.

    absent: which of the count·h·keys rows of the scores (keys × queries) are no token; None where all are.
    """

    first: int
    count: int
    keys: int
    queries: int
    absent: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """How a projection to h heads is taken apart for attention, and put together again.

    gather: rows of the projection seen as (T·3·h, d_head): for each block its queries (count, h, queries),
        then its keys and values (count, h, keys each); places beyond a sequence's end repeat its last token.
    scatter: (T·h,), where each token's heads lie among the `places` results, (count, h, queries) a block.
    Both int64.
    """

    heads: int
    places: int
    gather: Tensor
    scatter: Tensor
    blocks: tuple[AttentionBlock, ...]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of B sequences, shortest first, on the device of the network.

    ids, positions, segments: (T,) int64. row_of_token: (T,) int64, the sequence of each token.
    first_token: (B,) int64, where each sequence's [CLS] stands. offsets: (B + 1,) int32.
    order: (B,) numpy int64, the caller's index of each packed sequence.
    rows: the caller's sequences; B is larger by one where a deterministic pack was filled up.
    query_step: attention's queries are filled up to a multiple of it.
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
    query_step: int
    _layouts: dict[int, AttentionLayout] = field(default_factory=dict, repr=False)

    def layout(self, heads: int) -> AttentionLayout:
        """The layout for layers that compute this many heads; made at the first call."""
        if heads not in self._layouts:
            self._layouts[heads] = lay_out(self.groups, heads, self.query_step, self.ids.device)
        return self._layouts[heads]


def pack(
    pairs: Sequence[EncodedPair],
    *,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool = False,
) -> PackedBatch:
    """Packs at least one encoded pair.

    deterministic: sequences share an attention call only at equal lengths, and the pack is filled
        up to a multiple of ROW_MULTIPLE tokens with a sequence that nobody reads, so that no
        result depends on the neighbours.
    """
    lengths = np.fromiter((len(pair) for pair in pairs), np.int64, len(pairs))
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    segments = [pairs[i] for i in order]
    ids = [pair.ids for pair in segments]
    query_lengths = np.fromiter((pair.first_segment for pair in segments), np.int64, len(pairs))
    filler = -int(lengths.sum()) % ROW_MULTIPLE if deterministic else 0
    if filler:
        lengths = np.append(lengths, filler)
        query_lengths = np.append(query_lengths, filler)
        ids.append(np.zeros(filler, np.int32))
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(offsets[-1]) - offsets[row_of_token]
    step = 1 if deterministic else LENGTH_STEP

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return PackedBatch(
        ids=tensor(np.concatenate(ids).astype(np.int64)),
        positions=tensor(positions),
        segments=tensor((positions >= query_lengths[row_of_token]).astype(np.int64)),
        row_of_token=tensor(row_of_token),
        first_token=tensor(offsets[:-1]),
        offsets=tensor(offsets.astype(np.int32)),
        order=order,
        groups=tuple(_on_device(group, device, dtype) for group in group_by_length(lengths, step)),
        max_length=int(lengths.max()),
        rows=len(pairs),
        query_step=1 if deterministic else QUERY_STEP,
    )


def group_by_length(lengths: np.ndarray, step: int) -> list[AttentionGroup]:
    """Cuts a pack into groups of neighbours whose lengths round up to the same multiple of `step`.

    lengths: (B,) in the order of the pack.
    """
    groups: list[AttentionGroup] = []
    classes = -(-lengths // step)
    borders = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(lengths)]
    start = 0
    for begin, end in itertools.pairwise(borders):
        most = max(1, SCORES_AT_ONCE // int(lengths[begin:end].max()) ** 2)
        for first in range(begin, end, most):
            groups.append(_group(first, start, lengths[first : min(first + most, end)]))
            start = groups[-1].stop
    return groups


def _group(first: int, start: int, lengths: np.ndarray) -> AttentionGroup:
    count, length, stop = len(lengths), int(lengths.max()), start + int(lengths.sum())
    if int(lengths.min()) == length:
        return AttentionGroup(first, start, stop, count, length, lengths)
    exists = np.arange(length) < lengths[:, None]  # (count, length)
    bias = np.where(exists, np.float32(0), np.float32(-np.inf))[:, None, None, :]
    return AttentionGroup(
        first,
        start,
        stop,
        count,
        length,
        lengths,
        gather=torch.from_numpy(_tokens(start, lengths, length).reshape(-1)),
        scatter=torch.from_numpy(np.flatnonzero(exists)),
        bias=torch.from_numpy(bias),
    )


def _tokens(start: int, lengths: np.ndarray, width: int) -> np.ndarray:
    """The token of each of `width` places of each sequence, the last one repeated. Returns (count, width)."""
    firsts = start + np.cumsum(lengths) - lengths
    tokens: np.ndarray = firsts[:, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
    return tokens


def lay_out(
    groups: Sequence[AttentionGroup], heads: int, query_step: int, device: torch.device
) -> AttentionLayout:
    """The layout of these groups, which make up a pack, for `heads` heads."""
    gathers, scatters, blocks = [], [], []
    places = 0
    head = np.arange(heads)
    for group in groups:
        count, keys, lengths = group.count, group.length, group.lengths
        queries = -(-keys // query_step) * query_step
        for part, width in enumerate((queries, keys, keys)):
            row = _tokens(group.start, lengths, width) * (3 * heads) + part * heads
            gathers.append((row[:, None, :] + head[:, None]).reshape(-1))
        exists = np.arange(keys) < lengths[:, None]  # (count, keys)
        sequence, place = np.nonzero(exists)
        result = places + sequence * (heads * queries) + place
        scatters.append((result[:, None] + head * queries).reshape(-1))
        absent = None
        if not exists.all():
            missing = np.broadcast_to(~exists[:, None], (count, heads, keys))
            absent = torch.from_numpy(np.flatnonzero(missing)).to(device)
        blocks.append(AttentionBlock(group.first, count, keys, queries, absent))
        places += count * heads * queries
    return AttentionLayout(
        heads,
        places,
        torch.from_numpy(np.concatenate(gathers)).to(device),
        torch.from_numpy(np.concatenate(scatters)).to(device),
        tuple(blocks),
    )


def _on_device(group: AttentionGroup, device: torch.device, dtype: torch.dtype) -> AttentionGroup:
    if group.gather is None or group.scatter is None or group.bias is None:
        return group
    return replace(
        group,
        gather=group.gather.to(device),
        scatter=group.scatter.to(device),
        bias=group.bias.to(device, dtype),
    )
