"""ModernBERT's network against transformers, and its kernels against plain torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ops import kernel_library
from tests.models.reference import logits_of, network_of, random_pair, random_weights, reference
from tests.modernberts import random_modernbert

LAYERS, HEADS = 4, 4


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    heads, layers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4, 16, 32])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_labels": draw(st.integers(1, 5)),
        "vocab_size": draw(st.integers(5, 200)),
        "max_position_embeddings": 512,
        "local_attention": draw(st.sampled_from([2, 5, 16, 128])),
        "layer_types": draw(st.none() | st.lists(kinds, min_size=layers, max_size=layers)),
        "classifier_pooling": draw(st.sampled_from(["cls", "mean"])),
        "classifier_activation": draw(st.sampled_from(["gelu", "tanh", "relu", "silu"])),
        **{
            name: draw(st.booleans())
            for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
        },
    }


LENGTHS = st.lists(st.integers(2, 60), max_size=3).flatmap(
    lambda short: st.integers(2, 200).map(lambda long: [*short, long])
)


@settings(max_examples=20, deadline=None)
@given(shape=shapes(), lengths=LENGTHS, seed=st.integers(0, 99))
def test_float32_logits_are_as_exact_as_transformers_own(
    shape: dict[str, Any], lengths: list[int], seed: int
) -> None:
    model = random_modernbert(seed, **shape)
    rng = np.random.default_rng(seed)
    pairs = [random_pair(rng, length, shape["vocab_size"]) for length in lengths]
    weights = random_weights(rng, len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])

    weights[-1] = 1  # the longest keeps all heads

    exact = reference(model, pairs, torch.float64, weights)
    theirs = reference(model, pairs, torch.float32, weights)
    ours = logits_of(network_of(model), pairs, weights)

    rounding = 1e-6 + 16 * np.finfo(np.float32).eps * max(1.0, np.abs(exact).max())
    assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + rounding


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_and_plain_torch_give_the_same_scores(
    dtype: torch.dtype, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_modernbert(
        1, hidden_size=64, max_position_embeddings=256, classifier_pooling=pooling, initializer_range=0.1
    )
    rng = np.random.default_rng(1)
    pairs = [random_pair(rng, int(length), 300) for length in rng.integers(2, 200, 12)]
    weights = random_weights(rng, 12, LAYERS, HEADS)

    ours = logits_of(network_of(model, dtype), pairs, weights)
    with monkeypatch.context() as patched:
        patched.setattr(kernel_library, "best", lambda: None)
        plain = logits_of(network_of(model, dtype), pairs, weights)

    bound = 1e-4 if dtype == torch.float32 else 3e-2
    assert np.abs(ours - plain).max() <= bound * np.abs(plain).max()
