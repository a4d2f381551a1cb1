"""DeBERTa's network against transformers: long sequences, kernels, bits in any batch."""

from typing import Any

import numpy as np
import pytest
import torch

from models import UnsupportedCheckpoint
from models.checkpoint.config import parse_config
from models.ops import kernel_library
from tests.families import model_of
from tests.models.reference import logits_of, network_of, random_pair, random_weights, reference

LENGTHS = (3, 17, 64, 130, 300, 511, 512)
SHAPES: dict[str, dict[str, Any]] = {
    "as published": {"position_buckets": 256},
    "of few buckets": {"position_buckets": 16, "max_relative_positions": 50},
    "of single distances": {"position_buckets": -1, "max_relative_positions": 20},
    "with maps of distances": {"share_att_key": False},
    "of content alone": {"relative_attention": False, "norm_rel_ebd": "none"},
}

every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@every_shape
def test_long_pairs_are_as_exact_as_transformers_own(
    shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our kernels and without them, and within 2e-5."""
    model = model_of("deberta-v2", 3, hidden_size=64, max_position_embeddings=512, **shape)
    rng = np.random.default_rng(0)
    pairs = [random_pair(rng, length, 400) for length in LENGTHS]
    weights = random_weights(rng, len(pairs), 3, 4)
    exact, theirs = (reference(model, pairs, dtype, weights) for dtype in (torch.float64, torch.float32))
    bound = 2 * np.abs(theirs - exact).max() + 2e-6 * np.abs(exact).max()
    assert bound < 2e-5 * max(1.0, np.abs(exact).max())

    assert np.abs(logits_of(network_of(model), pairs, weights) - exact).max() <= bound
    half = logits_of(network_of(model, torch.bfloat16), pairs, weights)
    assert np.abs(half - exact).max() <= 6e-2 * np.abs(exact).max()
    monkeypatch.setattr(kernel_library, "best", lambda: None)
    assert np.abs(logits_of(network_of(model), pairs, weights) - exact).max() <= bound


@every_shape
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(shape: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    network = network_of(
        model_of("deberta-v2", 1, max_position_embeddings=512, **shape), deterministic=True
    )  # heads of 8 numbers: no kernel computes them
    pairs = [random_pair(rng, length, 400) for length in (5, 33, 33, 90)]
    weights = random_weights(rng, len(pairs), 3, 4)

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])

    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_kernel_size": 3}, "convolution"),
        ({"pos_att_type": ["c2p", "p2p"]}, "pos_att_type is"),
        ({"position_buckets": 2}, "position_buckets is 2"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd is"),
        ({"pooler_hidden_size": 7}, "pooler_hidden_size is 7"),
        ({"type_vocab_size": 1}, "type_vocab_size is 1"),
    ],
)
def test_other_attention_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    config = model_of("deberta-v2").config.to_dict()
    with pytest.raises(UnsupportedCheckpoint, match=message):
        parse_config(config | change)
