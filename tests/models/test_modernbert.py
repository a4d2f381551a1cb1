"""ModernBERT's network against transformers, masks against an oracle, and what else works with a network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ModernBertForSequenceClassification

from models.batch import pack
from models.checkpoint.tokenizer import EncodedPair
from models.ops import kernel_library
from tests.models.reference import CPU, logits_of, network_of, random_pair, random_weights
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


def reference(
    model: ModernBertForSequenceClassification,
    pairs: list[EncodedPair],
    dtype: torch.dtype = torch.float32,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Logits (n, labels) of each pair on its own. weights: (n, layers, heads)."""
    model = copy.deepcopy(model).to(dtype)
    rows = []
    for i, pair in enumerate(pairs):
        ids = torch.tensor(pair.ids[None].astype(np.int64))
        with torch.no_grad(), masked(model, None if weights is None else weights[i]):
            rows.append(model(input_ids=ids).logits[0].double().numpy())
    return np.stack(rows)


@contextmanager
def masked(model: ModernBertForSequenceClassification, weights: np.ndarray | None) -> Iterator[None]:
    """Multiply the heads' outputs before Wo in transformers' own model. weights: (layers, heads)."""
    handles = []
    for layer, own in zip(model.model.layers, () if weights is None else weights, strict=weights is not None):
        size = model.config.hidden_size // model.config.num_attention_heads
        factor = torch.from_numpy(own).repeat_interleave(size)
        handles.append(
            layer.attn.Wo.register_forward_pre_hook(
                lambda _, x, factor=factor: (x[0] * factor.to(x[0].dtype),)
            )
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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


def test_bfloat16_is_as_close_to_the_truth_as_transformers_bfloat16() -> None:
    for seed in range(3):
        model = random_modernbert(seed, hidden_size=64, initializer_range=0.1)
        rng = np.random.default_rng(seed)
        pairs = [random_pair(rng, int(length), 300) for length in rng.integers(2, 64, 12)]
        exact = reference(model, pairs, torch.float64)
        theirs = reference(model, pairs, torch.bfloat16)

        ours = logits_of(network_of(model, torch.bfloat16), pairs)

        assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + 1e-2 * np.abs(exact).max()


@settings(max_examples=10, deadline=None)
@given(shape=shapes(), lengths=st.lists(st.integers(2, 80), min_size=2, max_size=7), seed=st.integers(0, 99))
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(
    shape: dict[str, Any], lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    network = network_of(random_modernbert(seed, **shape), deterministic=True)
    pairs = [random_pair(rng, length, shape["vocab_size"]) for length in lengths]
    weights = random_weights(rng, len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])

    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_maps_are_transformers_attentions(dtype: torch.dtype) -> None:
    model = random_modernbert(8)
    pair = random_pair(np.random.default_rng(8), 37, 300)  # beyond the window of 8 to each side
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor(pair.ids[None].astype(np.int64)), output_attentions=True
        ).attentions
    heads = [(3, 3), (0, 1), (1, 0), (2, 2)]

    maps = network_of(model, dtype).attention_maps(pack([pair], device=CPU), heads)

    for ours, (layer, head) in zip(maps, heads, strict=True):
        expected = theirs[layer][0, head].numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-5 if dtype == torch.float32 else 0.1)
    assert not maps[2][0, 9:].any()
