"""The packed network against transformers, and scores that do not depend on their neighbours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headroom.models.batch import pack
from headroom.models.checkpoint.fields import ACTIVATIONS
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTemplate
from headroom.models.network import Network
from headroom.models.ops import kernel_library
from tests import decoders, families
from tests.checkpoints import WORDS, load, random_model, write_checkpoint, write_int8
from tests.families import ROBERTAS, model_of
from tests.models.reference import (
    CPU,
    inputs_of,
    logits_of,
    network_of,
    random_pair,
    random_weights,
    reference,
)
from tests.modernberts import write_modernbert

pytestmark = pytest.mark.usefixtures("one_thread")

BFLOAT16_BOUND = 2e-2
"""Largest change of a bfloat16 logit by its neighbours, relative to the logits' own scale. bfloat16 keeps
8 bits (a step of 2^-8 = 4e-3); other groupings of the same sums may round a few of them the other way."""
SLACK = {torch.float32: 4e-6, torch.bfloat16: 1e-2}
"""Of the logits' scale, beside twice transformers' own error, which may be small by luck."""
ROBERTA = PairTemplate((0,), (2, 2), (2,), two_segments=False)
ENCODERS = [*families.FAMILIES, "modernbert"]


def own_options(family: str, layers: int) -> dict[str, st.SearchStrategy[Any]]:
    """What a family's config.json says beside the shape."""
    if family in ROBERTAS:
        return {"type_vocab_size": st.integers(1, 2), "pad_token_id": st.integers(0, 3)}
    if family == "electra":
        return {"embedding_size": st.sampled_from([3, 8, 16, 32])}
    if family == "deberta-v2":
        return {
            "position_buckets": st.sampled_from([4, 9, 32]),
            "max_relative_positions": st.sampled_from([-1, 30]),
            "pos_att_type": st.sampled_from(["p2c|c2p", ["c2p", "p2c"]]),
            "position_biased_input": st.booleans(),
            "pooler_hidden_act": st.sampled_from(["gelu", "tanh"]),
        }
    if family == "modernbert":
        kinds = st.sampled_from(["full_attention", "sliding_attention"])
        flags = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
        return {
            "local_attention": st.sampled_from([2, 5, 16, 128]),
            "layer_types": st.none() | st.lists(kinds, min_size=layers, max_size=layers),
            "classifier_pooling": st.sampled_from(["cls", "mean"]),
            "classifier_activation": st.sampled_from(["gelu", "tanh", "relu", "silu"]),
            **dict.fromkeys(flags, st.booleans()),
        }
    return {}


@st.composite
def shapes(draw: st.DrawFn, family: str) -> dict[str, Any]:
    heads, layers = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    own = own_options(family, layers)
    if family != "modernbert":
        own["hidden_act"] = st.sampled_from([*ACTIVATIONS])
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4, 8, 12, 16, 32])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_labels": draw(st.integers(1, 7)),
        "vocab_size": draw(st.integers(9, 200)),
        "max_position_embeddings": draw(st.sampled_from([60, 64, 130, 512])),
        **{name: draw(strategy) for name, strategy in own.items()},
    }


def random_pairs(
    rng: np.random.Generator, lengths: Any, family: str = "bert", vocab_size: int = 180
) -> list[EncodedPair]:
    pairs = [random_pair(rng, int(length), vocab_size) for length in lengths]
    return [replace(pair, template=ROBERTA) for pair in pairs] if family in ROBERTAS else pairs


def alone(network: Network, pairs: list[EncodedPair], weights: np.ndarray) -> np.ndarray:
    """Return the logits of pairs that are each computed in a batch of their own."""
    return np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])


@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
@pytest.mark.parametrize("family", ENCODERS)
def test_float32_logits_are_as_exact_as_transformers_own(family: str, data: st.DataObject, seed: int) -> None:
    shape = data.draw(shapes(family))
    short = data.draw(st.lists(st.integers(4, 60), max_size=3))
    # Always some pairs more: the error of a single logit may be small by luck, also transformers' own.
    lengths = [*short, data.draw(st.integers(4, shape["max_position_embeddings"])), *range(4, 60, 8)]
    model, rng = model_of(family, seed, **shape), np.random.default_rng(seed)
    pairs = random_pairs(rng, lengths, family, shape["vocab_size"])
    masks = random_weights(rng, len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])

    for weights in (None, masks):
        exact, theirs = (reference(model, pairs, dtype, weights) for dtype in (torch.float64, torch.float32))
        ours = logits_of(network_of(model), pairs, weights)
        rounding = 16 * np.finfo(np.float32).eps * max(1.0, np.abs(exact).max())
        assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + rounding


YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
STRETCHED = {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "modernbert": ("modernbert", {}),
    "modernbert of means": ("modernbert", {"classifier_pooling": "mean"}),
    "deberta": ("deberta-v2", {"position_buckets": 256}),
    "deberta of few buckets": ("deberta-v2", {"position_buckets": 16, "max_relative_positions": 50}),
    "deberta of the nearest bound": ("deberta-v2", {"position_buckets": 16, "max_relative_positions": 10}),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases": ("qwen3", {"head_dim": 16, "attention_bias": True, "rope_parameters": YARN}),
    "qwen3 of odd heads": ("qwen3", {"head_dim": 10, "num_key_value_heads": 4, "num_labels": 3}),
    "qwen2": ("qwen2", {}),
    "qwen2 with angles stretched": ("qwen2", {"num_key_value_heads": 1, "rope_parameters": STRETCHED}),
    "gemma": ("gemma", {}),
    "gemma of one head of keys": ("gemma", {"num_key_value_heads": 1, "head_dim": 32, "hidden_act": "gelu"}),
}
every_kind = pytest.mark.parametrize(("family", "options"), PUBLISHED.values(), ids=PUBLISHED.keys())


@every_kind
def test_long_pairs_are_as_exact_as_transformers_own(
    family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch, each with a mask of its own; in each number format, with our kernels and without them."""
    model = model_of(family, 3, hidden_size=64, num_hidden_layers=3, max_position_embeddings=512, **options)
    rng = np.random.default_rng(0)
    pairs = random_pairs(rng, (4, 17, 64, 130, 512), family)
    for weights in (None, random_weights(rng, len(pairs), 3, 4)):
        exact = reference(model, pairs, torch.float64, weights)
        scale = max(1.0, np.abs(exact).max())
        for dtype, slack in SLACK.items():
            error = np.abs(reference(model, pairs, dtype, weights) - exact).max()
            bound = 2 * error + slack * scale
            assert dtype == torch.bfloat16 or bound < 2e-5 * scale
            assert np.abs(logits_of(network_of(model, dtype), pairs, weights) - exact).max() <= bound
            with monkeypatch.context() as without:
                without.setattr(kernel_library, "choice", lambda: kernel_library.Choice(None))
                assert np.abs(logits_of(network_of(model, dtype), pairs, weights) - exact).max() <= bound


@every_kind
def test_deterministic_scores_of_each_kind_are_the_same_bits_alone_and_in_a_batch(
    family: str, options: dict[str, Any]
) -> None:
    """Some have heads of a size that no kernel computes."""
    rng = np.random.default_rng(1)
    model = model_of(family, 1, num_hidden_layers=3, max_position_embeddings=512, **options)
    network = network_of(model, deterministic=True)
    pairs = random_pairs(rng, (5, 33, 33, 64), family)
    weights = random_weights(rng, len(pairs), 3, 4)

    np.testing.assert_array_equal(logits_of(network, pairs, weights), alone(network, pairs, weights))


@settings(max_examples=50, deadline=None)
@given(
    shape=shapes("bert"),
    lengths=st.lists(st.integers(4, 60), min_size=2, max_size=9),
    seed=st.integers(0, 99),
)
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(
    shape: dict[str, Any], lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    network = network_of(random_model(seed, **shape), deterministic=True)
    pairs = random_pairs(rng, lengths, vocab_size=shape["vocab_size"])
    weights = random_weights(rng, len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])

    together = logits_of(network, pairs, weights)
    order = rng.permutation(len(pairs))
    shuffled = logits_of(network, [pairs[i] for i in order], weights[order])

    np.testing.assert_array_equal(together, alone(network, pairs, weights))
    np.testing.assert_array_equal(together[order], shuffled)


@pytest.mark.parametrize(("heads", "hidden", "count"), [(4, 32, 60), (12, 192, 60), (12, 768, 20)])
def test_scores_at_real_widths_move_with_their_neighbours_by_no_more_than_the_stated_bound(
    heads: int, hidden: int, count: int
) -> None:
    model = random_model(
        3, num_attention_heads=heads, hidden_size=hidden, intermediate_size=4 * hidden, initializer_range=0.05
    )
    rng = np.random.default_rng(3)
    pairs = random_pairs(rng, rng.integers(4, 64, count))
    weights = random_weights(rng, len(pairs), 3, heads)

    half = network_of(model, torch.bfloat16)
    together, apart = logits_of(half, pairs, weights), alone(half, pairs, weights)
    assert np.abs(together - apart).max() <= BFLOAT16_BOUND * np.abs(apart).max()
    exact = network_of(model, deterministic=True)
    np.testing.assert_array_equal(logits_of(exact, pairs, weights), alone(exact, pairs, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*ENCODERS, *decoders.FAMILIES])
def test_attention_maps_are_transformers_attentions(family: str, dtype: torch.dtype) -> None:
    model = model_of(family, 8)
    model.set_attn_implementation("eager")
    (pair,) = random_pairs(np.random.default_rng(8), [37], family)  # beyond ModernBERT's window
    with torch.no_grad():
        theirs = model(**inputs_of(model, pair), output_attentions=True).attentions
    heads = [(2, 3), (0, 1), (1, 0)]

    maps = network_of(model, dtype).attention_maps(pack([pair], device=CPU), heads)

    for ours, (layer, head) in zip(maps, heads, strict=True):
        expected = theirs[layer][0, head].numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-5 if dtype == torch.float32 else 0.1)


WORD = "keyboard"


def pairs() -> list[tuple[str, str]]:
    """A dozen pairs of two to twenty words; every fourth title holds WORD."""
    rng = np.random.default_rng(0)
    words = [word for word in WORDS if word != WORD]
    titles = [list(rng.choice(words, rng.integers(1, 19))) for _ in range(12)]
    for title in titles[::4]:
        title.insert(int(rng.integers(0, len(title) + 1)), WORD)
    return [(str(rng.choice(words)), " ".join(title)) for title in titles]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT and a ModernBERT whose heads and rows the kernels compute, as floats and in int8."""
    directory = tmp_path_factory.mktemp("nan")
    written = {
        "bert": write_checkpoint(directory / "bert", hidden_size=64, intermediate_size=96),
        "modernbert": write_modernbert(
            directory / "modernbert", hidden_size=64, intermediate_size=48, num_hidden_layers=3
        ),
    }
    for name in tuple(written):
        written[f"{name}-int8"] = write_int8(written[name], directory / f"{name}-int8")
    return written


@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "bert-int8", "modernbert", "modernbert-int8"])
def test_a_token_that_is_not_a_number_spoils_its_pair_and_no_other(
    checkpoints: dict[str, Path],
    name: str,
    dtype: str,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(kernel_library, "choice", lambda: kernel_library.Choice(None))
    clf = load(checkpoints[name], dtype)
    assert (clf.network.ops.kernels is not None) == (compiled and kernel_library.choice().kernels is not None)
    encoded = clf.tokenizer.encode(pairs())
    clean = clf.forward(encoded)
    embeddings = clf.network.word_embeddings
    token = set(encoded[0].ids.tolist()).difference(*(pair.ids.tolist() for pair in encoded[1:4]))
    spoilt_ids = [
        only for only in token if all(only in encoded[row].ids for row in range(0, len(encoded), 4))
    ]
    embeddings[spoilt_ids[0], 3] = torch.nan

    spoilt = clf.forward(encoded)

    held = np.array([spoilt_ids[0] in pair.ids for pair in encoded])
    assert 0 < held.sum() < len(held)
    assert np.isnan(spoilt[held]).all()
    np.testing.assert_array_equal(spoilt[~held], clean[~held])
