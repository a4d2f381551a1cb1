"""Packs sequences of different lengths end to end, without padding, for one forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from models.tokenizer import EncodedPair

ROW_MULTIPLE = 16
"""Deterministic packs hold a multiple of this many tokens: matrix products with fewer rows take other
code paths and round differently (seen on CPUs: up to 11 rows for MKL, 1 row for oneDNN)."""

LENGTH_STEP = 16
"""Sequences within this many tokens of each other share one attention call."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Neighbouring sequences of similar length, attended to in one call.

    Tokens [start, stop) of the pack are `count` sequences of at most `length` tokens. Where all are
    of that length, gather, scatter and bias are None: the group is a plain view of the pack.

    gather: (count·length,) int64, the token of each padded place (a repeated one for padding).
    scatter: (stop − start,) int64, the padded place of each token.
    bias: (count, 1, 1, length), 0 for keys that exist and −inf for padding.
    """

    start: int
    stop: int
    count: int
    length: int
    gather: Tensor | None = None
    scatter: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of B sequences, shortest first, on the device of the network.

    ids, positions, segments: (T,) int64. row_of_token: (T,) int64, the sequence of each token.
    first_token: (B,) int64, where each sequence's [CLS] stands. offsets: (B + 1,) int32.
    order: (B,) numpy int64, the caller's index of each packed sequence.
    rows: the caller's sequences; B is larger by one where a deterministic pack was filled up.
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
    )


def group_by_length(lengths: np.ndarray, step: int) -> list[AttentionGroup]:
    """Cuts a pack into groups of neighbours whose lengths round up to the same multiple of `step`.

    lengths: (B,) in the order of the pack.
    """
    groups = []
    classes = -(-lengths // step)
    borders = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(lengths)]
    start = 0
    for first, last in itertools.pairwise(borders):
        inside = lengths[first:last]
        stop = start + int(inside.sum())
        groups.append(_group(start, stop, inside))
        start = stop
    return groups


def _group(start: int, stop: int, lengths: np.ndarray) -> AttentionGroup:
    count, length = len(lengths), int(lengths.max())
    if int(lengths.min()) == length:
        return AttentionGroup(start, stop, count, length)
    places = np.arange(length)
    exists = places < lengths[:, None]  # (count, length)
    firsts = start + np.concatenate(([0], np.cumsum(lengths)[:-1]))
    gather = firsts[:, None] + np.minimum(places, lengths[:, None] - 1)
    bias = np.where(exists, np.float32(0), np.float32(-np.inf))[:, None, None, :]
    return AttentionGroup(
        start,
        stop,
        count,
        length,
        gather=torch.from_numpy(gather.reshape(-1)),
        scatter=torch.from_numpy(np.flatnonzero(exists)),
        bias=torch.from_numpy(bias),
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
