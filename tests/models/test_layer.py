"""Attention over packs against torch's own implementation: `TorchOps.attention` of encoders, and
`TorchOps.causal` of decoders."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headroom.models.batch import PackedBatch, pack
from headroom.models.ops.causal import Causal
from headroom.models.ops.positions import PLAIN_POSITIONS, rotations
from headroom.models.ops.torch import TorchOps
from tests.models.reference import CPU, random_pair

OPS = TorchOps(CPU, torch.float32)


def torchs_attention(heads: int, width: int, seed: int) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    attention = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    nn.init.normal_(attention.in_proj_weight, std=0.2)
    nn.init.normal_(attention.in_proj_bias)
    nn.init.normal_(attention.out_proj.bias)
    return attention


def packed(lengths: list[int]) -> PackedBatch:
    """Pack sequences, which come shortest first."""
    rng = np.random.default_rng(0)
    return pack([random_pair(rng, length, 50) for length in sorted(lengths)], device=CPU)


def sequences(batch: PackedBatch, x: Tensor) -> list[Tensor]:
    """Return the rows of each sequence of a pack."""
    return list(x[: int(batch.lengths.sum())].split(batch.lengths.tolist()))


@settings(max_examples=30, deadline=None)
@given(
    heads=st.integers(1, 8),
    size=st.sampled_from([4, 8, 64]),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_encoder_self_attention(heads: int, size: int, lengths: list[int], masked: bool, seed: int) -> None:
    theirs = torchs_attention(heads, heads * size, seed)
    batch = packed(lengths)
    x = torch.randn(len(batch.ids), heads * size)
    # a head's weight multiplies its columns of W^O
    weights = torch.rand(heads) if masked else torch.ones(heads)
    scaled = theirs.out_proj.weight.detach() * weights.repeat_interleave(size)

    projected = F.linear(x, theirs.in_proj_weight, theirs.in_proj_bias)
    context = OPS.attention(projected, batch, heads, weights[None] if masked else None, PLAIN_POSITIONS)
    ours = F.linear(context, theirs.out_proj.weight, theirs.out_proj.bias)

    theirs.out_proj.weight.data = scaled
    for found, sequence in zip(sequences(batch, ours), sequences(batch, x), strict=True):
        expected = theirs(*[sequence[None]] * 3, need_weights=False)[0][0]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lengths", [[9], [3, 9, 14]])
def test_decoder_self_attention_never_looks_ahead(lengths: list[int]) -> None:
    theirs = torchs_attention(4, 32, 1)
    batch = packed(lengths)
    x = torch.randn(len(batch.ids), 32)
    unrotated = rotations(1.0, 20, 8, CPU)
    unrotated[:, :4] = 1.0
    unrotated[:, 4:] = 0.0

    projected = F.linear(x, theirs.in_proj_weight, theirs.in_proj_bias)
    context = OPS.causal(projected, batch, Causal((0, 1, 2, 3, 4), unrotated, 1e-6), None)
    ours = F.linear(context, theirs.out_proj.weight, theirs.out_proj.bias)

    for found, sequence in zip(sequences(batch, ours), sequences(batch, x), strict=True):
        mask = nn.Transformer.generate_square_subsequent_mask(len(sequence))
        expected = theirs(*[sequence[None]] * 3, attn_mask=mask)[0][0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
