"""The packed network against transformers, and scores that do not depend on their neighbours."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from models import Classifier
from models.batch import pack
from models.compress.quantize import quantize
from models.ops import kernel_library
from tests.checkpoints import WORDS, random_model, write_checkpoint
from tests.models.reference import logits_of, network_of, random_pair, random_weights, reference
from tests.modernberts import random_modernbert, write_modernbert

BFLOAT16_BOUND = 2e-2
"""Largest change of a bfloat16 logit by its neighbours, relative to the logits' own scale. bfloat16 keeps
8 bits (a step of 2^-8 = 4e-3); other groupings of the same sums may round a few of them the other way."""


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    heads = draw(st.integers(1, 6))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4, 8, 12, 16, 32])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_labels": draw(st.integers(1, 7)),
        "vocab_size": draw(st.integers(5, 200)),
        "max_position_embeddings": 512,
    }


LENGTHS = st.lists(st.integers(2, 60), max_size=4).flatmap(
    lambda short: st.integers(2, 512).map(lambda long: [*short, long])
)


@settings(max_examples=50, deadline=None)
@given(shape=shapes(), lengths=LENGTHS, seed=st.integers(0, 99))
def test_float32_logits_are_as_exact_as_transformers_own(
    shape: dict[str, int], lengths: list[int], seed: int
) -> None:
    model = random_model(seed, **shape)
    rng = np.random.default_rng(seed)
    pairs = [random_pair(rng, length, shape["vocab_size"]) for length in lengths]

    exact = reference(model, pairs, torch.float64)
    theirs = reference(model, pairs, torch.float32)
    ours = logits_of(network_of(model), pairs)

    rounding = 16 * np.finfo(np.float32).eps * max(1.0, np.abs(exact).max())  # theirs may be exact by luck
    assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + rounding


@settings(max_examples=50, deadline=None)
@given(shape=shapes(), lengths=st.lists(st.integers(2, 80), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(
    shape: dict[str, int], lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    network = network_of(random_model(seed, **shape), deterministic=True)
    pairs = [random_pair(rng, length, shape["vocab_size"]) for length in lengths]
    weights = random_weights(rng, len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])
    order = rng.permutation(len(pairs))
    shuffled = logits_of(network, [pairs[i] for i in order], weights[order])

    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together[order], shuffled)


@pytest.mark.parametrize("shape", [(12, 768, 3072), (12, 192, 768)])
def test_deterministic_scores_hold_at_real_widths(shape: tuple[int, int, int]) -> None:
    heads, hidden, inner = shape
    model = random_model(
        0,
        num_hidden_layers=2,
        num_attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=inner,
        max_position_embeddings=512,
        initializer_range=0.05,
    )
    rng = np.random.default_rng(0)
    network = network_of(model, deterministic=True)
    pairs = [random_pair(rng, int(length), 180) for length in rng.integers(2, 60, 40)]
    weights = random_weights(rng, len(pairs), 2, heads)

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])

    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("shape", [(4, 32, 64), (12, 192, 768)])
def test_bfloat16_scores_move_with_their_neighbours_by_no_more_than_the_stated_bound(
    shape: tuple[int, int, int],
) -> None:
    heads, hidden, inner = shape
    model = random_model(
        3, num_attention_heads=heads, hidden_size=hidden, intermediate_size=inner, initializer_range=0.1
    )
    rng = np.random.default_rng(3)
    network = network_of(model, torch.bfloat16)
    pairs = [random_pair(rng, int(length), 180) for length in rng.integers(2, 64, 60)]
    weights = random_weights(rng, len(pairs), 3, heads)

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])

    assert np.abs(together - alone).max() <= BFLOAT16_BOUND * np.abs(alone).max()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999))
@pytest.mark.parametrize("make", [random_model, random_modernbert])
def test_bfloat16_is_as_close_to_the_truth_as_transformers_bfloat16(
    make: Callable[..., PreTrainedModel], seed: int
) -> None:
    model = make(seed, hidden_size=64, initializer_range=0.1)
    rng = np.random.default_rng(seed)
    pairs = [random_pair(rng, int(length), 180) for length in rng.integers(2, 64, 12)]

    exact = reference(model, pairs, torch.float64)
    theirs = reference(model, pairs, torch.bfloat16)
    ours = logits_of(network_of(model, torch.bfloat16), pairs)

    assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + 1e-2 * np.abs(exact).max()


def test_a_sliced_mask_computes_its_heads_alone_and_another_those_of_a_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("models.selection.HEAD_COUNTS", 2)  # of 4 heads: steps of 2
    rng = np.random.default_rng(8)
    network = network_of(random_model(8))
    batch = pack([random_pair(rng, 20, 180)], device=network.device)
    mask = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0.5, 0]], np.float32)
    multiplied = network.forward(batch, mask)

    used = []
    for sliced in (False, True):
        before = network.selector.cache.nbytes
        for _ in range(2):
            logits = network.forward(batch, mask, sliced=sliced)
        np.testing.assert_allclose(logits, multiplied, atol=1e-5)
        used.append(network.selector.cache.nbytes - before)

    head = network.layers[0].heads.nbytes / 4
    assert [round(nbytes / head) for nbytes in used] == [2, 1 + 3]


def test_sliced_variants_do_not_drive_out_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.selection.LEAST_CACHE_BYTES", 0)
    rng = np.random.default_rng(9)
    network = network_of(random_model(9))
    batch = pack([random_pair(rng, 20, 180)], device=network.device)
    masks = [np.ones((3, 4), np.float32) for _ in range(3)]
    for off, mask in enumerate(masks):
        mask[:, off] = 0
    network.selector.make_room(sliced=3)

    cut = []
    for _ in range(2):
        for mask in masks:
            network.forward(batch, mask, sliced=True)
        cut.append(network.selector.cache.nbytes)

    attention = sum(layer.heads.nbytes for layer in network.layers)
    assert cut[0] == cut[1] > 2 * attention  # three times three quarters
    network.selector.make_room(sliced=0)
    network.forward(batch, np.tile(np.array([0, 0, 0, 1], np.float32), (3, 1)), sliced=True)
    assert network.selector.cache.nbytes <= attention


WORD = "keyboard"


def pairs() -> list[tuple[str, str]]:
    """Pairs of two to twenty words; every fourth title holds WORD."""
    rng = np.random.default_rng(0)
    words = [word for word in WORDS if word != WORD]
    titles = [list(rng.choice(words, rng.integers(1, 19))) for _ in range(24)]
    for title in titles[::4]:
        title.insert(int(rng.integers(0, len(title) + 1)), WORD)
    return [(str(rng.choice(words)), " ".join(title)) for title in titles]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT and a ModernBERT whose heads and rows the kernels compute, as floats and in int8."""
    directory = tmp_path_factory.mktemp("nan")
    written = {
        "bert": write_checkpoint(directory / "bert", hidden_size=64, intermediate_size=96),
        "modernbert": write_modernbert(directory / "modernbert", hidden_size=64, intermediate_size=48),
    }
    for name in tuple(written):
        tokenizer = Classifier.load(written[name], "cpu", "float32").tokenizer
        quantize(written[name], directory / f"{name}-int8", tokenizer.encode(pairs()))
        written[f"{name}-int8"] = directory / f"{name}-int8"
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
        monkeypatch.setattr(kernel_library, "best", lambda: None)
    clf = Classifier.load(checkpoints[name], "cpu", dtype)
    assert (clf.network.ops.kernels is not None) == (compiled and kernel_library.best() is not None)
    encoded = clf.tokenizer.encode(pairs())
    clean = clf.forward(encoded)
    embeddings = clf.network.word_embeddings
    token = set(encoded[0].ids.tolist()).difference(*(pair.ids.tolist() for pair in encoded[1:4]))
    spoilt_ids = [only for only in token if all(only in encoded[row].ids for row in range(0, 24, 4))]
    embeddings[spoilt_ids[0], 3] = torch.nan

    spoilt = clf.forward(encoded)

    held = np.array([spoilt_ids[0] in pair.ids for pair in encoded])
    assert 0 < held.sum() < len(held)
    assert np.isnan(spoilt[held]).all()
    np.testing.assert_array_equal(spoilt[~held], clean[~held])
