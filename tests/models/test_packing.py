"""Packed attention gives every sequence what it gets alone, however the pack is cut into groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import packing
from models.attention import attend_packed
from models.packing import PackedBatch, filled_size, group_by_length, pack
from tests.models.reference import CPU, random_pair

SIZE = 4


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

    ours = attend_packed(projected, batch.layout(heads), weights)

    expected = alone(projected, batch, heads, weights)
    assert len(ours) == filled_size(sum(lengths))
    torch.testing.assert_close(ours[: len(expected)].double(), expected, atol=1e-5, rtol=1e-4)


def test_long_sequences_are_cut_into_more_groups_and_score_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [30, 31, 32, 32, 32, 29, 90]
    whole = packed(lengths)
    monkeypatch.setattr(packing, "SCORES_AT_ONCE", 2 * 32 * 32)
    cut = packed(lengths)
    projected = torch.randn(whole.ids.shape[0], 3 * 2 * SIZE)
    weights = torch.rand(len(lengths), 2)

    assert [group.count for group in whole.groups] == [6, 1]
    assert [group.count for group in cut.groups] == [2, 2, 2, 1]
    torch.testing.assert_close(
        attend_packed(projected, cut.layout(2), weights), attend_packed(projected, whole.layout(2), weights)
    )


def test_groups_cover_the_pack_in_order() -> None:
    lengths = np.array([2, 3, 16, 17, 40, 40, 5])
    groups = group_by_length(lengths, 16)

    assert [group.first for group in groups] == [0, 3, 4, 6]
    assert sum(group.count for group in groups) == len(lengths)
    assert [group.start for group in groups[1:]] == [group.stop for group in groups[:-1]]


def test_a_layout_is_made_once_for_each_number_of_heads() -> None:
    batch = packed([5, 9])
    assert batch.layout(3) is batch.layout(3)
    assert batch.layout(2).heads == 2


@pytest.mark.parametrize(
    ("count", "filled"),
    [(1, 16), (16, 16), (17, 32), (500, 512), (1023, 1024), (1025, 1056), (2049, 2112), (16_385, 16_896)],
)
def test_sizes_come_again_and_cost_little(count: int, filled: int) -> None:
    assert filled_size(count) == filled


@given(count=st.integers(1, 50_000))
def test_a_filled_size_is_hardly_more_than_was_asked(count: int) -> None:
    size = filled_size(count)
    assert count <= size < count + max(16, count / 32)
    assert size % 16 == 0
    assert filled_size(size) == size


def test_packs_of_many_mixes_take_few_shapes() -> None:
    """Every shape is code that oneDNN compiles: a stream of ever new mixes must not make ever new ones."""
    rng = np.random.default_rng(3)
    products, attentions = set(), set()
    for _ in range(300):
        batch = packed(rng.integers(8, 60, int(rng.integers(1, 40))).tolist())
        products |= {batch.ids.shape[0], batch.first_token.shape[0]}
        for heads in (7, 12):  # a layer that lost some heads, and one that did not
            attentions |= {
                (block.problems, block.keys, block.queries) for block in batch.layout(heads).blocks
            }
    assert len(products) < 100  # of 300
    assert len(attentions) < 96


def test_a_pack_that_is_not_filled_holds_the_sequences_alone() -> None:
    rng = np.random.default_rng(0)
    batch = pack([random_pair(rng, 5, 50)], device=CPU, fill=False)
    assert batch.ids.shape == batch.row_of_token.shape == (5,)
    assert batch.first_token.shape == (1,)
