"""Packed attention gives every sequence what it gets alone, however the pack is cut into groups."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headroom.models.batch import PackedBatch, filled_size, pack, rung_of
from headroom.models.graphs import ladder_for
from headroom.models.ops.positions import PLAIN_POSITIONS
from headroom.models.ops.torch import TorchOps
from tests.models.reference import CPU, random_pair

SIZE = 4
OPS = TorchOps(CPU, torch.float32)


def packed(lengths: list[int], *, deterministic: bool = False) -> PackedBatch:
    rng = np.random.default_rng(0)
    pairs = [random_pair(rng, length, 50) for length in lengths]
    return pack(pairs, device=CPU, deterministic=deterministic)


def alone(projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None) -> Tensor:
    """From the definition, one sequence and head after another. Returns (tokens of sequences, heads, SIZE)
    float64."""
    out = torch.empty(int(batch.offsets[-1]), heads, SIZE, dtype=torch.float64)
    parts = projected.double().view(-1, 3, heads, SIZE)
    for row in range(batch.rows):
        start, stop = batch.offsets[row], batch.offsets[row + 1]
        for head in range(heads):
            query, key, value = parts[start:stop, :, head].unbind(1)
            result = torch.softmax(query @ key.T * SIZE**-0.5, -1) @ value
            weight = 1 if weights is None else weights.expand(batch.rows, -1)[row, head]
            out[start:stop, head] = result * weight
    return out


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 150), min_size=1, max_size=9),
    heads=st.integers(1, 4),
    masked=st.sampled_from(["no", "by row", "one for all"]),
    deterministic=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_sequence_attends_to_itself_alone(
    lengths: list[int], heads: int, masked: str, deterministic: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    batch = packed(lengths, deterministic=deterministic)
    projected = torch.randn(batch.ids.shape[0], 3 * heads * SIZE)
    rows = {"no": 0, "by row": batch.rows, "one for all": 1}[masked]
    weights = torch.rand(rows, heads) if rows else None

    ours = OPS.attention(projected, batch, heads, weights, PLAIN_POSITIONS).view(-1, heads, SIZE)
    only_first = replace(batch, read="first")
    first = OPS.attention(projected, only_first, heads, weights, PLAIN_POSITIONS).view(-1, heads, SIZE)

    expected = alone(projected, batch, heads, weights)
    assert len(ours) == filled_size(sum(lengths))
    torch.testing.assert_close(ours[: len(expected)].double(), expected, atol=1e-5, rtol=1e-4)
    assert not ours[len(expected) :].any()
    assert torch.equal(first, ours[batch.first_token])


@given(count=st.integers(1, 50_000), fine=st.booleans())
def test_a_filled_size_is_hardly_more_than_was_asked(count: int, *, fine: bool) -> None:
    size = filled_size(count, fine=fine)
    multiple = 8 if fine and count <= 64 else 16
    assert count <= size
    assert size == 16 or 16 < size < count + max(multiple, count / 32)
    assert size % multiple == 0
    assert filled_size(size, fine=fine) == size


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=9), tokens=st.integers(2, 40))
def test_sequences_up_to_a_length_are_those_that_are_not_longer(lengths: list[int], tokens: int) -> None:
    batch = packed(lengths)
    short, long = batch.by_length(tokens)
    assert [int(batch.lengths[row]) for row in short] == sorted(n for n in lengths if n <= tokens)
    assert [int(batch.lengths[row]) for row in long] == sorted(n for n in lengths if n > tokens)


def test_packs_of_many_mixes_take_few_shapes() -> None:
    """Every shape is code that oneDNN compiles: a stream of ever new mixes must not make ever new ones."""
    rng = np.random.default_rng(3)
    products = set()
    for _ in range(300):
        batch = packed(rng.integers(8, 60, int(rng.integers(1, 40))).tolist())
        products |= {batch.ids.shape[0], batch.first_token.shape[0]}
    assert len(products) < 100  # of 300


def test_full_batches_of_titles_have_graphs_on_a_gpu() -> None:
    rng = np.random.default_rng(0)
    ladder = ladder_for(16_384)
    rungs = set()
    for _ in range(1_000):
        lengths = np.clip(np.rint(rng.gamma(9.4, 25 / 9.4, 1_000)), 8, 128).astype(int)
        lengths = lengths[: int(np.searchsorted(lengths.cumsum(), 16_384, side="right"))]
        rungs.add(rung_of(ladder, int(lengths.sum()), len(lengths), int(lengths.max())))
    assert rungs == set(ladder[-2:])
