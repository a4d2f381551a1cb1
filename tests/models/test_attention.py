"""Multi-head attention against torch's own, in its three uses."""

import numpy as np
import pytest
import torch
from torch import nn

from headroom.models.attention import MultiHeadAttention
from headroom.models.batch import pack
from tests.checkpoints import random_model
from tests.models.reference import CPU, network_of, random_pair

CLASSIC = (512, 8)
SHAPES = [CLASSIC, (384, 12), (32, 1)]


def both(width: int, heads: int) -> tuple[nn.MultiheadAttention, MultiHeadAttention]:
    """Return torch's module with random weights and biases, and ours of the same weights."""
    theirs = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    return theirs, MultiHeadAttention.from_torch(theirs)


@pytest.mark.parametrize(("width", "heads"), SHAPES)
def test_three_uses_equal_torch(width: int, heads: int) -> None:
    theirs, ours = both(width, heads)
    x = torch.randn(2, 7, width)
    memory = torch.randn(2, 11, width)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])
    torch.testing.assert_close(ours(x, causal=True), theirs(x, x, x, attn_mask=later)[0])
    torch.testing.assert_close(ours(x, memory), theirs(x, memory, memory)[0])


def test_the_encoders_packed_heads_compute_the_same() -> None:
    """The network's own attention, over a pack without padding, is the equation of this module."""
    network = network_of(random_model())
    heads = network.layers[0].heads
    assert heads is not None
    attention = MultiHeadAttention(network.config.hidden_size, heads.count)
    maps = (attention.query, attention.key, attention.value)
    weights = heads.query_key_value.weight.chunk(3)
    biases = heads.query_key_value.bias.chunk(3)
    head_mask = torch.ones(heads.count)
    head_mask[3] = 0
    batch = pack([random_pair(np.random.default_rng(0), 9, 50)], device=CPU)
    with torch.inference_mode():
        for own, weight, bias in zip(maps, weights, biases, strict=True):
            own.weight.copy_(weight)
            own.bias.copy_(bias)
        attention.output.weight.copy_(heads.output.weight)
        attention.output.bias.copy_(heads.output.bias)
        x = network.embed(batch)
        packed = heads.output(network.attend(heads, x, batch, head_mask[None]))[:9]
        torch.testing.assert_close(attention(x[None, :9], head_mask=head_mask)[0], packed)
