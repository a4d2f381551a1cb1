"""Packs sequences of different lengths end to end, without padding, for one forward pass."""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headroom.models.checkpoint.texts import ID_BYTES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.device import is_out_of_memory
from headroom.models.errors import ModelError

LEAST_TOKENS = 16
"""A pack is filled up to at least this many tokens. Products of fewer rows may take other code paths and
round differently (on CPUs up to 11 rows with MKL, 1 row with oneDNN); a deterministic network must not."""

TOKEN_MULTIPLE = 16
"""A pack is filled up to a multiple of this many tokens."""

FINE_PACK = 64
"""Packs of up to this many tokens, about three pairs, may be filled up to half of TOKEN_MULTIPLE: one pair
that comes alone waits for its filling."""

FILL_STEP = 1 / 32
"""Large packs are filled up in steps of about this share of their tokens, because a product of a new shape is
expensive: oneDNN compiles code for it (0.4 to 0.8 ms, and one pass of the shipped model needs a dozen) and
keeps it (half a MiB)."""

GROUP_STEP = 16
"""Sequences whose lengths round up to the same multiple of this many tokens share one attention call, where
attention is computed on padded groups."""


class Beginning(NamedTuple):
    """The tokens before the title of a decoder's pair, which pairs of one query and mask share.

    key: equal for equal tokens under equal masks. tokens: their number.
    """

    key: Hashable
    tokens: int


class Rung(NamedTuple):
    """A shape that a network has CUDA graphs of, and the packs that are filled up to it.

    tokens, rows: the size that packs are filled up to. longest: no sequence of them has more tokens.
    above: they have more tokens than this.
    """

    tokens: int
    rows: int
    longest: int
    above: int


class Keys(NamedTuple):
    """The tokens whose keys and values each sequence reads: those of its prefix, then its own.

    tokens: (n,) int64, their indices in the pack, one sequence after the other; None: all, as they stand.
    offsets: (B + 1,) int32, where those of each sequence begin and end. longest: of one sequence.
    """

    tokens: Tensor | None
    offsets: Tensor
    longest: int


class Group(NamedTuple):
    """Sequences of similar length, padded for one attention call.

    tokens: (count, longest) int64, the index in the pack of each token; padding has the index of its
        sequence's last token.
    exists: (count, longest) bool, False for padding; None if there is no padding.
    existing: (n,) int64, the indices of the n tokens that are no padding in the flattened `tokens`; None if
        there is no padding.
    """

    tokens: Tensor
    exists: Tensor | None
    existing: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of B sequences, shortest first, on the device of the network.

    A pack may be filled up with tokens after the last sequence, which attend to nothing, and with first
    tokens of no sequence. The network's results for them are never read.

    ids, positions, segments: (T or more,) int64. row_of_token: the sequence of each token, same shape.
    first_token: (B or more,) int64, the index of each sequence's [CLS].
    offsets: (len(first_token) + 1,) int32, where sequences begin and end; those after B are empty.
    lengths: (B,) numpy int64, ascending.
    order: (B,) numpy int64, the caller's index of each packed sequence; for a prefix, of one of its pairs.
    answers: (pairs,) int64, the packed sequence that ends each of the caller's pairs.
    inputs: (words,) int64, the memory of all these tensors (`_Layout`).
    longest: no sequence has more tokens.
    prefixes: (B or more,) numpy int32, for a decoder: the sequence of the pack that each one goes on from,
        −1 for none. None: no sequence has one.
    exact: padded groups hold sequences of one length only, as a deterministic network needs it.
    read: the tokens of each sequence that leave the layer that computes this batch.
    rung: the rung of its network's ladder that the pack is filled up to; None: of none.
    captured: whether a CUDA graph computes this batch, and later ones of its rung. `lengths` and `order` are
        then empty, and `answers` has (B or more,) entries.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    row_of_token: Tensor
    first_token: Tensor
    offsets: Tensor
    lengths: np.ndarray
    order: np.ndarray
    answers: Tensor
    inputs: Tensor
    longest: int
    exact: bool
    prefixes: np.ndarray | None = None
    read: Literal["all", "first", "last"] = "all"
    rung: Rung | None = None
    captured: bool = False
    _groups: dict[bool, Sequence[Group]] = field(default_factory=dict, repr=False)
    """What `groups` returned, by `exact`; copies of the batch share it."""
    _keys: list[Keys] = field(default_factory=list, repr=False)
    """What `keys` returned, first; copies of the batch share it."""

    @property
    def rows(self) -> int:
        """Return the number of sequences, B."""
        return len(self.lengths)

    @property
    def groups(self) -> Sequence[Group]:
        """Return the sequences in groups of similar length, each padded for one attention call (cached)."""
        groups = self._groups.get(self.exact)
        if groups is None:  # of threads that make them at once, all get those of the first one
            groups = self._groups.setdefault(self.exact, self._padded_groups())
        return groups

    def _padded_groups(self) -> Sequence[Group]:
        step = 1 if self.exact else GROUP_STEP
        starts = self.lengths.cumsum() - self.lengths
        steps = -(-self.lengths // step)
        borders = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), self.rows]
        groups = []
        for first, end in itertools.pairwise(borders):
            lengths = self.lengths[first:end, None]
            position = np.arange(lengths.max())
            tokens = starts[first:end, None] + np.minimum(position, lengths - 1)
            exists = position < lengths
            moved = to_device([tokens, exists, np.flatnonzero(exists)], self.ids.device)
            if exists.all():
                groups.append(Group(moved[0], None, None))
            else:
                groups.append(Group(moved[0], moved[1].bool(), moved[2]))
        return groups

    @property
    def keys(self) -> Keys:
        """Return what each sequence of a decoder reads (cached)."""
        if not self._keys:  # of threads that make it at once, all read the first one's
            self._keys.append(self._keys_of_sequences())
        return self._keys[0]

    def _keys_of_sequences(self) -> Keys:
        if self.prefixes is None:
            return Keys(None, self.offsets[: self.rows + 1], self.longest)
        prefixes = self.prefixes[: self.rows]
        starts = self.lengths.cumsum() - self.lengths
        before = np.where(prefixes < 0, 0, self.lengths[prefixes])  # tokens of each one's prefix
        counts = before + self.lengths
        ends = counts.cumsum()
        row = np.arange(self.rows).repeat(counts)
        position = np.arange(ends[-1]) - (ends - counts)[row]
        is_own = position >= before[row]
        tokens = position + np.where(is_own, (starts - before)[row], starts[prefixes[row]])
        index, offsets = to_device([tokens, np.concatenate([[0], ends])], self.ids.device)
        return Keys(index, offsets.int(), int(counts.max()))

    @classmethod
    def to_capture(cls, rung: Rung, device: torch.device) -> "PackedBatch":
        """Return a pack without sequences, into whose memory later packs of the rung are copied."""
        layout = _Layout(rung.tokens, rung.rows)
        inputs = torch.zeros(sum(layout.words.values()), dtype=torch.int64, device=device)
        return cls(
            **layout.tensors(inputs),
            inputs=inputs,
            lengths=np.empty(0, np.int64),
            order=np.empty(0, np.int64),
            longest=rung.longest,
            exact=False,
            rung=rung,
            captured=True,
        )

    def by_length(self, tokens: int) -> tuple[range, range]:
        """Return the indices of the sequences of at most this many tokens, and those of the longer ones.

        A `captured` batch computes later packs, too: there, each range holds all sequences that may belong.
        """
        if self.captured:
            rows = len(self.first_token)
            return range(rows), range(rows if self.longest > tokens else 0)
        border = int(self.lengths.searchsorted(tokens, side="right"))
        return range(border), range(border, self.rows)

    def leaving(self, x: Tensor) -> Tensor:
        """Return the tokens of x that leave the layer: (T, D), or (B or more, D) of first or last tokens."""
        if self.read == "last":
            return x[(self.offsets[1:] - 1).clamp_(min=0)]
        return x[self.first_token] if self.read == "first" else x


def pack(
    pairs: Sequence[EncodedPair],
    *,
    device: torch.device,
    deterministic: bool = False,
    fill: bool = True,
    fine: bool = False,
    ladder: Sequence[Rung] = (),
    beginnings: Sequence[Beginning] | None = None,
) -> PackedBatch:
    """Pack at least one encoded pair.

    deterministic: sequences share an attention call only if their lengths are equal, so that no result
        depends on its neighbours.
    fill: fill the pack up to a shape that other packs have too: a rung of the ladder that has room for it,
        or a `filled_size`. fine: which of its sizes.
    beginnings: of a decoder's pairs; each is packed once, as a sequence of its own that its pairs go on from.
        One of a single pair stays with it, unless that would change its last bits in a deterministic network.
    """
    if beginnings is None:
        sequences = _Sequences.of(
            [pair.data for pair in pairs], np.arange(len(pairs)), np.full(len(pairs), -1)
        )
    else:
        sequences = _without_beginnings(pairs, beginnings, every=deterministic)
    sequences = sequences.by_length()
    lengths = sequences.lengths
    rows = len(lengths)
    tokens = int(lengths.sum())
    longest = int(lengths[-1])
    rung = rung_of(ladder, tokens, rows, longest) if fill else None
    filled_tokens = tokens
    filled_rows = rows
    if rung is not None:
        filled_tokens = rung.tokens
        filled_rows = rung.rows
    elif fill:
        filled_tokens = filled_size(tokens, fine=fine)
        filled_rows = filled_size(rows, fine=fine)
    layout = _Layout(filled_tokens, filled_rows)
    inputs = layout.inputs(_arrays(pairs, sequences, filled_rows), device)
    fields = layout.tensors(inputs)
    fields["answers"] = fields["answers"][: len(pairs)]
    prefixes = None
    if (sequences.prefix >= 0).any():
        prefixes = np.pad(sequences.prefix, (0, filled_rows - rows), constant_values=-1).astype(np.int32)
    return PackedBatch(
        **fields,
        inputs=inputs,
        lengths=lengths,
        order=sequences.pair,
        longest=longest,
        exact=deterministic,
        prefixes=prefixes,
        rung=rung,
    )


def rung_of(ladder: Sequence[Rung], tokens: int, rows: int, longest: int) -> Rung | None:
    """Return the first rung for packs of this size; None if there is none."""
    for rung in ladder:
        has_room = tokens <= rung.tokens and rows <= rung.rows and longest <= rung.longest
        if has_room and tokens > rung.above:
            return rung
    return None


class _Layout(NamedTuple):
    """The order and sizes of the tensors in `PackedBatch.inputs`. tokens, rows: of the filled pack."""

    tokens: int
    rows: int

    @property
    def words(self) -> dict[str, int]:
        """Return how many numbers of 64 bits each tensor takes; one holds two `offsets`, which are int32."""
        return {
            "ids": self.tokens,
            "positions": self.tokens,
            "segments": self.tokens,
            "row_of_token": self.tokens,
            "first_token": self.rows,
            "answers": self.rows,
            "offsets": self.rows // 2 + 1,
        }

    def inputs(self, arrays: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
        """Return the memory of a pack, int64 on the device. arrays: each tensor's values."""
        words = self.words
        return _on_device([arrays[name] for name in words], list(words.values()), device, torch.int64)

    def tensors(self, inputs: Tensor) -> dict[str, Any]:
        """Return the tensors of a pack by name; all are views of its memory."""
        words = self.words
        parts = inputs.split_with_sizes(list(words.values()))
        tensors: dict[str, Any] = dict(zip(words, parts, strict=True))
        tensors["offsets"] = tensors["offsets"].view(torch.int32)[: self.rows + 1]
        return tensors


def _arrays(pairs: Sequence[EncodedPair], sequences: "_Sequences", rows: int) -> dict[str, np.ndarray]:
    """Return the values of a pack's tensors by name. sequences: shortest first. rows: of the filled pack."""
    lengths = sequences.lengths
    positions = sequences.positions
    row_of_token = np.arange(len(lengths)).repeat(lengths)
    ends_pair = np.ones(len(lengths), np.bool_)
    ends_pair[sequences.prefix[sequences.prefix >= 0]] = False
    last_rows = np.flatnonzero(ends_pair)
    first_segments = np.array([pairs[pair].first_segment for pair in sequences.pair.tolist()], np.int64)
    offsets = np.full(2 * (rows // 2 + 1), len(positions), np.int32)
    offsets[0] = 0
    offsets[1 : len(lengths) + 1] = lengths.cumsum()
    return {
        "ids": np.frombuffer(b"".join(sequences.ids), np.int32),
        "positions": positions,
        "segments": positions >= first_segments[row_of_token],
        "row_of_token": row_of_token,
        "first_token": offsets[: len(lengths)],
        "answers": last_rows[sequences.pair[last_rows].argsort()],
        "offsets": offsets.view(np.int64),
    }


class _Sequences(NamedTuple):
    """The n sequences that pairs are packed as.

    ids: the tokens of each, int32 values. lengths: (n,) int64, how many they are. pair: (n,) int64, its pair.
    prefix: (n,) int64, the sequence that it goes on from, −1 for none.
    """

    ids: list[bytes]
    lengths: np.ndarray
    pair: np.ndarray
    prefix: np.ndarray

    @classmethod
    def of(cls, ids: list[bytes], pair: np.ndarray, prefix: np.ndarray) -> "_Sequences":
        """Return the sequences of these tokens."""
        return cls(ids, np.fromiter(map(len, ids), np.int64, len(ids)) // ID_BYTES, pair, prefix)

    @property
    def positions(self) -> np.ndarray:
        """Return the position of each token, (T,) int64; those of a prefix come before."""
        lengths = self.lengths
        starts = lengths.cumsum() - lengths
        first = np.where(self.prefix < 0, 0, lengths[self.prefix])
        positions: np.ndarray = np.arange(lengths.sum()) + (first - starts).repeat(lengths)
        return positions

    def by_length(self) -> "_Sequences":
        """Return the same sequences, the shortest first."""
        order = self.lengths.argsort(kind="stable")
        prefix = self.prefix[order]
        return _Sequences(
            ids=[self.ids[index] for index in order.tolist()],
            lengths=self.lengths[order],
            pair=self.pair[order],
            prefix=np.where(prefix < 0, -1, order.argsort()[prefix]),
        )


def _without_beginnings(
    pairs: Sequence[EncodedPair], beginnings: Sequence[Beginning], *, every: bool
) -> _Sequences:
    """Return each beginning that several pairs share as one sequence, and what follows it in each pair.

    every: beginnings of single pairs are cut off too.
    """
    count = Counter(beginnings)
    sequence_of: dict[Beginning, int] = {}
    ids = list[bytes]()
    pair_of = list[int]()
    prefixes = list[int]()
    for number, (pair, beginning) in enumerate(zip(pairs, beginnings, strict=True)):
        start = 0
        prefix = -1
        if beginning.tokens and (every or count[beginning] > 1):
            start = beginning.tokens
            if beginning not in sequence_of:
                sequence_of[beginning] = len(ids)
                ids.append(pair.data[: start * ID_BYTES])
                pair_of.append(number)
                prefixes.append(-1)
            prefix = sequence_of[beginning]
        ids.append(pair.data[start * ID_BYTES :])
        pair_of.append(number)
        prefixes.append(prefix)
    return _Sequences.of(ids, np.array(pair_of), np.array(prefixes))


def filled_size(count: int, *, fine: bool = False) -> int:
    """Return the size that a pack of `count` tokens (or rows) is filled up to.

    It is at least LEAST_TOKENS, a multiple of TOKEN_MULTIPLE, and of the largest power of two that is at most
    FILL_STEP of `count`. fine: up to FINE_PACK, half of TOKEN_MULTIPLE is enough.
    """
    power_of_two = 1 << max(0, int(count * FILL_STEP).bit_length() - 1)
    step = max(TOKEN_MULTIPLE // 2 if fine and count <= FINE_PACK else TOKEN_MULTIPLE, power_of_two)
    return max(LEAST_TOKENS, -(-count // step) * step)


def to_device(
    arrays: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype = torch.int64
) -> list[Tensor]:
    """Move arrays to the device in one asynchronous copy. Returns contiguous tensors."""
    sizes = [array.size for array in arrays]
    parts = _on_device(arrays, sizes, device, dtype).split_with_sizes(sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _on_device(
    arrays: Sequence[np.ndarray], sizes: Sequence[int], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return arrays on the device, one after the other, each filled up to its size with zeros."""
    host = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    values = host.numpy()
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        end = start + array.size
        np.copyto(values[start:end], array.ravel(), casting="same_kind")
        start += size
        values[end:start].fill(0)
    return host.to(device, non_blocking=True)


def batches_by_length(
    lengths: Sequence[int],
    budget: int,
    beginnings: Sequence[Beginning] | None = None,
    indices: Sequence[int] | None = None,
) -> Iterator[list[int]]:
    """Cut sequences, shortest first, into batches of at most `budget` tokens and at least one sequence.

    beginnings: those that are equal count once per batch, and their sequences follow each other.
    indices: of the sequences to cut; default: all. Yields the indices of each batch.
    """
    order = sorted(range(len(lengths)) if indices is None else indices, key=lengths.__getitem__)
    if beginnings is not None:
        rank: dict[Beginning, int] = {}
        order.sort(key=lambda index: rank.setdefault(beginnings[index], len(rank)))
    rows = list[int]()
    tokens = 0
    previous: Beginning | None = None
    for index in order:
        beginning = None if beginnings is None else beginnings[index]
        added = lengths[index]
        if beginning is not None and beginning == previous:
            added -= beginning.tokens
        if rows and tokens + added > budget:
            yield rows
            rows = []
            tokens = 0
            added = lengths[index]
        rows.append(index)
        tokens += added
        previous = beginning
    if rows:
        yield rows


def in_halves(
    run: Callable[[Sequence[int]], np.ndarray], rows: Sequence[int], device: torch.device
) -> np.ndarray:
    """Return the results of rows from one pass, (n, …); if memory is full, those of each half, and so on.

    Raises ModelError if there is no memory for one row.
    """
    try:
        return run(rows)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Here the error is gone, and with it its traceback, whose frames hold the pass's tensors.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if len(rows) == 1:
        raise ModelError(f"the memory of {device} is too small for one pair; score on another device")
    middle = len(rows) // 2
    return np.concatenate([in_halves(run, half, device) for half in (rows[:middle], rows[middle:])])
