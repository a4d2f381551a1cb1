"""Multi-head attention against torch's and transformers' own, in its three uses."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BartConfig
from transformers.models.bart.modeling_bart import BartAttention

from headroom.models.attention import MultiHeadAttention
from headroom.models.batch import pack
from tests.checkpoints import random_model
from tests.models.reference import CPU, network_of, random_pair

CLASSIC = (512, 8)
SHAPES = [CLASSIC, (384, 12), (32, 1)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def both(width: int, heads: int) -> tuple[nn.MultiheadAttention, MultiHeadAttention]:
    """Return torch's module with random weights and biases, and ours of the same weights."""
    theirs = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    return theirs, MultiHeadAttention.from_torch(theirs)


def in_plain_torch(
    attention: MultiHeadAttention, x: Tensor, memory: Tensor, weights: Tensor, hidden: Tensor | None = None
) -> Tensor:
    """Return the equation with each head's probabilities times its weight, head by head."""
    size = attention.head_size
    rows = []
    for row in range(len(x)):
        parts = []
        for head in range(attention.heads):
            span = slice(head * size, (head + 1) * size)
            query = x[row] @ attention.query.weight[span].T + attention.query.bias[span]
            key = memory[row] @ attention.key.weight[span].T + attention.key.bias[span]
            value = memory[row] @ attention.value.weight[span].T + attention.value.bias[span]
            scores = query @ key.T / math.sqrt(size)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            parts.append(scores.softmax(-1) * weights[row, head] @ value)
        rows.append(attention.output(torch.cat(parts, -1)))
    return torch.stack(rows)


@pytest.mark.parametrize(("width", "heads"), SHAPES)
def test_three_uses_equal_torch(width: int, heads: int) -> None:
    theirs, ours = both(width, heads)
    x = torch.randn(2, 7, width)
    memory = torch.randn(2, 11, width)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])
    torch.testing.assert_close(ours(x, causal=True), theirs(x, x, x, attn_mask=later)[0])
    torch.testing.assert_close(ours(x, memory), theirs(x, memory, memory)[0])


def test_encoder_decoder_attention_equals_barts() -> None:
    config = BartConfig(d_model=512, decoder_attention_heads=8, attn_implementation="eager")
    theirs = BartAttention(512, 8, is_decoder=True, config=config, layer_idx=0).eval()
    ours = MultiHeadAttention(*CLASSIC)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    state: dict[str, Any] = {
        f"{own}.{part}": theirs.state_dict()[f"{other}.{part}"]
        for own, other in names.items()
        for part in ("weight", "bias")
    }
    ours.load_state_dict(state)
    x = torch.randn(3, 5, 512)
    memory = torch.randn(3, 9, 512)
    torch.testing.assert_close(ours(x, memory), theirs(x, key_value_states=memory)[0])


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
