"""The network under masks that skip layers and switch units off, against transformers without those parts."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from headroom.models.batch import pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.masks.head_mask import HeadMask
from headroom.models.network import Network
from headroom.models.ops.torch import TorchOps
from headroom.models.selection import RowMasks, by_structure
from tests.checkpoints import load, random_model, random_pairs, write_checkpoint, write_int8
from tests.models.reference import CPU, inputs_of, network_of, random_pair
from tests.modernberts import random_modernbert, write_modernbert

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS, HEADS, ROWS = 4, 4, 14
UNITS = {"bert": 64, "modernbert": 24, "mean": 24}

MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    "bert": random_model,
    "modernbert": random_modernbert,
    "mean": lambda seed, **shape: random_modernbert(seed, classifier_pooling="mean", mlp_bias=True, **shape),
}

family = pytest.mark.parametrize("family", MODELS)


def model_of(family: str, seed: int = 0) -> PreTrainedModel:
    return MODELS[family](seed, num_hidden_layers=LAYERS)


def some_pairs(rng: np.random.Generator, count: int) -> list[EncodedPair]:
    return [random_pair(rng, int(length), 40) for length in rng.integers(3, 50, count)]


def some_masks(rng: np.random.Generator, count: int, units: int) -> list[HeadMask]:
    """Masks of every kind: nothing off, layers skipped (the last, all of them), units off, fractions."""
    masks = []
    for number in range(count):
        weights = rng.choice([0.0, 0.5, 1.0], (LAYERS, HEADS), p=[0.3, 0.1, 0.6]) if number % 3 else 1.0
        skipped = np.flatnonzero(rng.random(LAYERS) < (0.4 if number % 2 else 0)).tolist()
        off = rng.random((LAYERS, units)) < rng.choice([0.2, 0.5, 1.0]) if number % 4 > 1 else None
        masks.append(HeadMask(np.broadcast_to(weights, (LAYERS, HEADS)), tuple(skipped), off))
    masks[1] = masks[0] * HeadMask(rng.integers(0, 2, (LAYERS, HEADS)))  # of one structure
    masks[count // 2] = HeadMask.parse("skip:*", layers=LAYERS, heads=HEADS)
    masks[count // 3] = HeadMask.parse("skip:3", layers=LAYERS, heads=HEADS)
    return masks


def without(model: PreTrainedModel, mask: HeadMask) -> PreTrainedModel:
    """Return the model with skipped layers replaced by the identity, and weights of zero for what is off."""
    model = copy.deepcopy(model)
    is_bert = hasattr(model, "bert")
    for number, layer in enumerate(model.bert.encoder.layer if is_bert else model.model.layers):
        if number in mask.skipped:
            layer.forward = lambda hidden_states, *_, **__: hidden_states
            continue
        output, down = (
            (layer.attention.output.dense, layer.output.dense) if is_bert else (layer.attn.Wo, layer.mlp.Wo)
        )
        with torch.no_grad():
            weights = torch.from_numpy(mask.matrix[number].copy())
            output.weight.mul_(weights.repeat_interleave(output.in_features // HEADS))
            if mask.units_off is not None:
                down.weight[:, torch.from_numpy(mask.units_off[number].copy())] = 0
    return model


def oracle(model: PreTrainedModel, pairs: list[EncodedPair], masks: list[HeadMask]) -> np.ndarray:
    """Return transformers' logits (n, labels) in float64, of each pair on its own under its mask."""
    models = {mask: without(model, mask).double() for mask in masks}
    rows = []
    for pair, mask in zip(pairs, masks, strict=True):
        with torch.no_grad():
            rows.append(models[mask](**inputs_of(model, pair)).logits[0].numpy())
    return np.stack(rows)


def logits(
    network: Network,
    pairs: list[EncodedPair],
    masks: HeadMask | list[HeadMask],
    *,
    sliced: bool = False,
) -> np.ndarray:
    """Return the logits of pairs in as few batches as their masks allow."""
    if isinstance(masks, list):
        found = np.empty((len(pairs), len(network.config.labels)), np.float32)
        for rows in by_structure(masks):
            batch = pack([pairs[i] for i in rows], device=CPU, deterministic=network.deterministic)
            found[rows] = network.forward(batch, RowMasks.of([masks[i] for i in rows]), sliced=sliced).numpy()
        return found
    batch = pack(pairs, device=CPU, deterministic=network.deterministic)
    return network.forward(batch, RowMasks.of(masks), sliced=sliced).numpy()


@family
def test_rows_under_masks_of_every_kind_are_transformers_without_those_parts(family: str) -> None:
    rng = np.random.default_rng(1)
    model = model_of(family)
    pairs, masks = some_pairs(rng, ROWS), some_masks(rng, ROWS, UNITS[family])
    exact = network_of(model, torch.float64, ops=TorchOps(CPU, torch.float64))

    expected = oracle(model, pairs, masks)

    np.testing.assert_allclose(logits(exact, pairs, masks), expected, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(logits(network_of(model), pairs, masks), expected, atol=2e-5)


@family
def test_one_mask_for_all_rows_scores_the_same_multiplied_cut_out_and_sliced(family: str) -> None:
    rng = np.random.default_rng(2)
    model = model_of(family)
    pairs = some_pairs(rng, 3)
    network = network_of(model)
    for mask in some_masks(rng, 8, UNITS[family]):
        expected = oracle(model, pairs, [mask] * 3)
        for sliced in (False, False, True):
            np.testing.assert_allclose(logits(network, pairs, mask, sliced=sliced), expected, atol=2e-5)


@family
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(family: str) -> None:
    rng = np.random.default_rng(3)
    network = network_of(model_of(family), deterministic=True)
    pairs, masks = some_pairs(rng, ROWS), some_masks(rng, ROWS, UNITS[family])

    together = logits(network, pairs, masks)
    alone = np.concatenate([logits(network, [p], [m]) for p, m in zip(pairs, masks, strict=True)])
    order = rng.permutation(len(pairs))
    shuffled = logits(network, [pairs[i] for i in order], [masks[i] for i in order])

    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(shuffled, together[order])


def test_layers_that_all_rows_skip_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    network = network_of(random_model(5, num_hidden_layers=LAYERS))
    attend, computed = network.ops.attention, []

    def counted(projected: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        computed.append(len(projected))
        return attend(projected, *arguments, **options)

    monkeypatch.setattr(network.ops, "attention", counted)
    pairs = [random_pair(rng, 32, 40) for _ in range(4)]
    upper, all_on = (HeadMask.parse(spec, layers=LAYERS, heads=HEADS) for spec in ("skip:1-3", "none"))

    logits(network, pairs, upper)
    logits(network, pairs, [upper, upper, upper, all_on])
    assert computed == [128, 96, 32, 32, 32, 32]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_int8_cuts_out_and_zeroes_the_same_units(tmp_path: Path, family: str) -> None:
    rng = np.random.default_rng(8)
    write = write_checkpoint if family == "bert" else write_modernbert
    source = write(tmp_path / "float", num_hidden_layers=LAYERS, initializer_range=0.2)
    exact, int8, texts = load(source), load(write_int8(source, tmp_path / "int8")), random_pairs(20)
    ones, off = np.ones((LAYERS, HEADS), np.float32), rng.random((LAYERS, UNITS[family])) < 0.3
    mask, other = HeadMask(ones, (2,), off), HeadMask.parse("0.1", layers=LAYERS, heads=HEADS)

    expected = exact.score(texts, mask).logits
    mixed = int8.score(texts * 2, [mask] * 20 + [other] * 20).logits[:20]
    multiplied, cut = (int8.score(texts, mask).logits for _ in range(2))

    assert int8.network.selector.cache.nbytes > 0
    for found in (mixed, multiplied, cut):
        error = np.sqrt(np.square(found - expected).mean()) / expected.std(axis=0).mean()
        assert error < 0.2
    np.testing.assert_allclose(cut, multiplied, atol=0.03 * np.abs(expected).max())

    off[1] = True  # of one layer no unit is left
    none_left = HeadMask(ones, (), off)
    cut, mixed = int8.score(texts[:4], none_left).logits, int8.score(texts[:5], [none_left] * 4 + [other])
    np.testing.assert_allclose(cut, mixed.logits[:4], atol=0.03 * np.abs(expected).max())
