"""An int8 checkpoint scores as the float one does and takes the same masks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models import HeadMask
from models.compress.prune import prune
from models.ops import integer_products
from models.ops.integer_products import input_bits
from tests.checkpoints import write_checkpoint
from tests.models.compress.quantized import PAIRS, load, make_int8


@pytest.fixture
def _plain_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    input_bits.cache_clear()
    monkeypatch.setattr(integer_products, "CHECKED_TORCH", "1.0.")
    yield
    input_bits.cache_clear()


def error_of(ours: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of the difference, relative to how far the exact logits are spread."""
    return float(np.sqrt(np.square(ours - exact).mean()) / exact.std(axis=0).mean())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", ["none", "0.1,2.*", "0-1.*", "random:0.5@3"])
def test_scores_are_the_float_ones_under_any_mask(
    tiny_checkpoint: Path, int8_checkpoint: Path, spec: str, dtype: str
) -> None:
    mask = HeadMask.parse(spec, layers=3, heads=4)
    exact = load(tiny_checkpoint).score(PAIRS, mask)
    int8 = load(int8_checkpoint, dtype).score(PAIRS, mask)

    assert error_of(int8.logits, exact.logits) < 0.12
    assert (int8.grade == exact.grade).mean() >= 0.9


def test_the_checkpoint_is_a_quarter_of_its_float_products(
    tiny_checkpoint: Path, int8_checkpoint: Path
) -> None:
    tensors = load_file(int8_checkpoint / "model.safetensors")
    products = [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]
    assert len(products) == 3 * 6
    assert load(int8_checkpoint).network.parameters == load(tiny_checkpoint).network.parameters
    assert load(int8_checkpoint).network.number_format == "int8"
    assert load(int8_checkpoint).network.nbytes < load(tiny_checkpoint).network.nbytes


def test_one_channel_far_wider_than_the_others_costs_the_others_nothing(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "float", seed=3)
    tensors = load_file(source / "model.safetensors")
    for layer in range(3):
        for norm, products in (
            ("attention.output", ("intermediate.dense",)),
            ("output", ("attention.self.query", "attention.self.key", "attention.self.value")),
        ):
            tensors[f"bert.encoder.layer.{layer}.{norm}.LayerNorm.weight"][5] = 60.0
            tensors[f"bert.encoder.layer.{layer}.{norm}.LayerNorm.bias"][5] = 20.0
            following = layer if norm == "attention.output" else layer + 1
            for name in products if following < 3 else ():
                tensors[f"bert.encoder.layer.{following}.{name}.weight"][:, 5] /= 60
    save_file(tensors, source / "model.safetensors")

    exact = load(source).score(PAIRS).logits
    int8 = load(make_int8(source, tmp_path / "int8")).score(PAIRS).logits

    assert error_of(int8, exact) < 0.12


@pytest.mark.parametrize(
    "value",
    ["1.2", "0-1.*", "random:0.5@3", {"weights": [[1, 0.5, 0, 1], [0.25, 0, 0, 0], [1, 1, 1, 0.125]]}],
    ids=str,
)
def test_an_int8_checkpoint_can_be_pruned(int8_checkpoint: Path, tmp_path: Path, value: Any) -> None:
    mask = HeadMask.parse(value, layers=3, heads=4)
    prune(int8_checkpoint, tmp_path / "pruned", mask)

    expected = load(int8_checkpoint).score(PAIRS, mask).logits
    pruned = load(tmp_path / "pruned").score(PAIRS).logits

    np.testing.assert_allclose(pruned, expected, atol=0.02 * np.abs(expected).max())


def test_a_pruned_checkpoint_can_be_quantized(tiny_checkpoint: Path, tmp_path: Path) -> None:
    prune(tiny_checkpoint, tmp_path / "pruned", HeadMask.parse("0.1,1.*", layers=3, heads=4))
    int8 = load(make_int8(tmp_path / "pruned", tmp_path / "int8"))

    exact = load(tmp_path / "pruned").score(PAIRS).logits

    assert int8.config.kept_heads == ((0, 2, 3), (), (0, 1, 2, 3))
    assert error_of(int8.score(PAIRS).logits, exact) < 0.12


def test_attention_maps_are_the_float_ones(tiny_checkpoint: Path, int8_checkpoint: Path) -> None:
    heads = [(0, 1), (2, 3)]
    mask = HeadMask.parse("2.3", layers=3, heads=4)
    exact, int8 = (load(directory) for directory in (tiny_checkpoint, int8_checkpoint))
    pair = exact.tokenizer.encode([PAIRS[0]])[0]

    found = int8.attention(pair, heads, mask)

    np.testing.assert_allclose(found, exact.attention(pair, heads, mask), atol=0.1)
    assert not found[1].any()


def test_deterministic_scores_are_the_same_bits_in_any_batch(int8_checkpoint: Path) -> None:
    clf = load(int8_checkpoint, deterministic=True)
    masks = [HeadMask.parse(f"random:0.4@{seed}", layers=3, heads=4) for seed in range(len(PAIRS))]

    together = clf.score(PAIRS, masks).logits
    alone = np.concatenate([clf.score([pair], mask).logits for pair, mask in zip(PAIRS, masks, strict=True)])

    np.testing.assert_array_equal(together, alone)


@pytest.mark.usefixtures("_plain_torch")
def test_another_processor_gives_the_same_answers(int8_checkpoint: Path) -> None:
    plain = load(int8_checkpoint, deterministic=True).score(PAIRS).logits
    input_bits.cache_clear()
    integer_products.CHECKED_TORCH = "2.13."
    fused = load(int8_checkpoint, deterministic=True).score(PAIRS).logits

    np.testing.assert_allclose(plain, fused, atol=0.02 * np.abs(plain).max())
