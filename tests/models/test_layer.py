"""Multi-head attention in its three kinds, against torch's own implementations."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.layer import MultiHeadAttention
from models.ops.torch import Linear, attention_probabilities


def torch_reference(
    heads: int, width: int, seed: int
) -> tuple[torch.nn.MultiheadAttention, MultiHeadAttention]:
    """torch's module and ours with the same weights."""
    torch.manual_seed(seed)
    theirs = torch.nn.MultiheadAttention(width, heads, batch_first=True).eval()
    torch.nn.init.normal_(theirs.in_proj_weight, std=0.2)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    projection = Linear(theirs.in_proj_weight.detach(), theirs.in_proj_bias.detach())
    output = Linear(theirs.out_proj.weight.detach(), theirs.out_proj.bias.detach())
    return theirs, MultiHeadAttention(heads, width // heads, projection, output)


def padding(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width) >= lengths[:, None]


@settings(max_examples=30, deadline=None)
@given(
    heads=st.integers(1, 8),
    size=st.sampled_from([4, 8, 64]),
    rows=st.integers(1, 4),
    length=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_encoder_self_attention(heads: int, size: int, rows: int, length: int, seed: int) -> None:
    theirs, ours = torch_reference(heads, heads * size, seed)
    x = torch.randn(rows, length, heads * size)
    lengths = torch.randint(1, length + 1, (rows,))

    expected = theirs(x, x, x, key_padding_mask=padding(lengths, length), need_weights=False)[0]

    torch.testing.assert_close(ours(x, key_lengths=lengths), expected.detach(), atol=1e-4, rtol=1e-4)


def test_decoder_self_attention_never_looks_ahead() -> None:
    theirs, ours = torch_reference(4, 32, 1)
    x = torch.randn(3, 9, 32)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(9)

    before = ours(x, causal=True)
    torch.testing.assert_close(before, theirs(x, x, x, attn_mask=causal)[0].detach(), atol=1e-5, rtol=1e-4)

    x[:, 5:] = torch.randn(3, 4, 32)  # the future changes
    torch.testing.assert_close(ours(x, causal=True)[:, :5], before[:, :5], atol=1e-6, rtol=1e-5)


def test_encoder_decoder_attention_reads_keys_and_values_from_the_memory() -> None:
    theirs, ours = torch_reference(4, 32, 2)
    queries, memory = torch.randn(3, 5, 32), torch.randn(3, 11, 32)
    lengths = torch.tensor([11, 4, 1])

    expected = theirs(queries, memory, memory, key_padding_mask=padding(lengths, 11))[0].detach()

    torch.testing.assert_close(ours(queries, memory, key_lengths=lengths), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_a_head_mask_removes_the_head_and_keeps_the_bias(kind: str) -> None:
    _, ours = torch_reference(4, 32, 3)
    x = torch.randn(2, 7, 32)
    memory = torch.randn(2, 5, 32) if kind == "cross" else None
    weights = torch.tensor([[1.0, 0.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]])

    masked = ours(x, memory, causal=kind == "causal", head_weights=weights)

    # The same, from the definition: the output projection of each head's own part, added up.
    keys = x if memory is None else memory
    query, key, value = (
        F.linear(source, w, b).unflatten(-1, (4, 8)).transpose(1, 2)
        for source, w, b in zip(
            (x, keys, keys),
            ours.query_key_value.weight.chunk(3),
            ours.query_key_value.bias.chunk(3),
            strict=True,
        )
    )
    bias = torch.full((7, 7), -torch.inf).triu(1) if kind == "causal" else None
    heads = attention_probabilities(query, key, bias, 8**-0.5) * weights[:, :, None, None] @ value
    expected = F.linear(heads.transpose(1, 2).flatten(2), ours.output.weight, ours.output.bias)
    torch.testing.assert_close(masked, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(masked[1], ours.output.bias.expand(7, 32))
