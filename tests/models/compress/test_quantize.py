"""An int8 checkpoint scores as the float one does and takes the same masks."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headroom import Classifier, HeadMask, InvalidMask, ModelError, UnsupportedCheckpoint
from headroom.models.compress.prune import prune
from headroom.models.compress.quantize import activation_scale, quantize
from headroom.models.ops.int8_products import input_bits
from tests.checkpoints import load, random_pairs, write_checkpoint, write_int8
from tests.families import edit_config
from tests.modernberts import write_modernbert

PAIRS = random_pairs(40, seed=1)

BOUND = 0.2 if input_bits() == 7 else 0.12
"""Of `error_of`. Where inputs have 7 bits (AVX2), they are rounded to twice the steps."""


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

    assert error_of(int8.logits, exact.logits) < BOUND
    assert (int8.grade == exact.grade).mean() >= 0.9


def with_outlier(directory: Path, units: int) -> Path:
    """Write a checkpoint in which a unit of layer 1 is sixteen times as large as the others."""
    write_checkpoint(directory, intermediate_size=units)
    tensors = load_file(directory / "model.safetensors")
    up, down = (f"bert.encoder.layer.1.{name}.dense.weight" for name in ("intermediate", "output"))
    tensors[up][5] *= 16
    tensors[down][:, 5] /= 16
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def outlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a stored mask that switches its largest unit off."""
    directory = with_outlier(tmp_path_factory.mktemp("outlier") / "float", 768)
    (directory / "masks").mkdir()
    (directory / "masks" / "without.json").write_text('{"mask": {"units": "1.5"}, "note": "kept"}')
    return directory


def test_a_narrow_layer_gets_copies_too(tmp_path: Path) -> None:
    """`fast`, of 640 units and fewer, got none, and lost 0.19 of QWK where inputs have 7 bits."""
    source = with_outlier(tmp_path / "float", 640)
    int8 = load(write_int8(source, tmp_path / "int8"))
    assert int8.config.widths == (640, 656, 640)
    assert error_of(int8.score(PAIRS).logits, load(source).score(PAIRS).logits) < BOUND


def test_a_unit_far_beyond_the_others_gets_copies_which_a_mask_switches_off_too(
    outlier: Path, tmp_path: Path
) -> None:
    int8, whole = load(write_int8(outlier, tmp_path / "int8")), load(outlier)
    assert int8.config.widths == (768, 784, 768)
    assert error_of(int8.score(PAIRS).logits, whole.score(PAIRS).logits) < BOUND

    mask, exact = int8.stored_masks["without"], whole.score(PAIRS, whole.stored_masks["without"])
    assert mask.to_json()["units"].startswith("1.5,1.768-")
    assert '"note": "kept"' in (tmp_path / "int8" / "masks" / "without.json").read_text()
    assert error_of(int8.score(PAIRS, mask).logits, exact.logits) < BOUND


@pytest.mark.parametrize("units", [64, 768])
def test_a_layer_that_is_nearly_dead_is_quantized(units: int) -> None:
    """Its activations are below 0, where the largest of GELU's are tiny beside the smallest."""
    sums = torch.randn(32, units, generator=torch.Generator().manual_seed(0)) * 0.05 - 3
    found = activation_scale(sums, torch.nn.functional.gelu, torch.ones(4, units))
    assert len(found.units) == units
    steps = torch.nn.functional.gelu(sums) / found.scale + found.zero_point
    assert steps.min() >= -0.5
    assert steps.max() <= 255.5


def test_a_mask_of_the_float_checkpoint_is_refused_where_units_got_copies(
    outlier: Path, tmp_path: Path
) -> None:
    """The copies of a unit that goes would stay on. The mask that is stored beside it names them, too."""
    source = Path(shutil.copytree(outlier, tmp_path / "float"))
    whole = load(source)
    file = {"mask": {"units": "1.5"}, "id": whole.stored_masks["without"].id}
    (source / "masks" / "without.json").write_text(json.dumps(file | {"spec": f"units:{file['id']}"}))
    int8 = load(write_int8(source, tmp_path / "int8"))

    with pytest.raises(InvalidMask, match=r"another shape.* 784 units of this model"):
        int8.mask(file)
    stored = json.loads((tmp_path / "int8" / "masks" / "without.json").read_text())
    mask = int8.stored_masks["without"]
    assert (stored["id"], stored["spec"]) == (mask.id, f"units:{mask.id}")
    assert mask.id != file["id"]
    assert whole.mask(file) == whole.stored_masks["without"]


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
    int8 = load(write_int8(source, tmp_path / "int8")).score(PAIRS).logits

    assert error_of(int8, exact) < BOUND


@pytest.mark.parametrize("units", ["2.*", "*.*", "2.0-9"])
def test_an_int8_checkpoint_with_gates_can_lose_units_of_a_layer_and_all_of_them(
    tmp_path: Path, units: str
) -> None:
    """In a gated network each unit has a midpoint, whose effect stands in the bias; it goes with the unit."""
    int8 = write_int8(write_modernbert(tmp_path / "float", num_labels=5), tmp_path / "int8")
    whole = load(int8)
    mask = whole.mask({"units": units})
    prune(int8, tmp_path / "pruned", mask)

    pruned = load(tmp_path / "pruned").score(PAIRS).logits
    np.testing.assert_allclose(
        pruned, without_units(int8, tmp_path / "zeroed", mask).score(PAIRS).logits, atol=1e-3
    )


def without_units(int8: Path, directory: Path, mask: HeadMask) -> Classifier:
    """Return a gated int8 checkpoint whose masked units have weights of 0 in the next map, and no part of
    their midpoints in its bias."""
    shutil.copytree(int8, directory)
    tensors = load_file(directory / "model.safetensors")
    assert mask.units_off is not None
    for layer, off in enumerate(torch.from_numpy(mask.units_off.copy())):
        (down,) = (
            name.removesuffix("weight")
            for name in tensors
            if re.search(rf"\.{layer}\.mlp\.Wo\.weight$", name)
        )
        weight = tensors[f"{down}weight"]
        midpoints = tensors[f"{down}input_offset"] / tensors[f"{down}input_scale"]
        tensors[f"{down}bias"] -= (weight[:, off].float() @ midpoints[off]) * tensors[f"{down}weight_scale"]
        weight[:, off] = 0
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return load(directory)


def test_deterministic_scores_are_the_same_bits_in_any_batch(int8_checkpoint: Path) -> None:
    clf = load(int8_checkpoint, deterministic=True)
    masks = [HeadMask.parse(f"random:0.4@{seed}", layers=3, heads=4) for seed in range(len(PAIRS))]

    together = clf.score(PAIRS, masks).logits
    alone = np.concatenate([clf.score([pair], mask).logits for pair, mask in zip(PAIRS, masks, strict=True)])

    np.testing.assert_array_equal(together, alone)


PREFIX = "bert.encoder.layer.1."


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("output.dense.weight_scale", 0, r"layer\.1\.output\.dense\.weight_scale .* is not above 0"),
        ("attention.self.input_offset", torch.nan, "input_offset holds NaN"),
    ],
)
def test_damaged_checkpoints_are_refused_by_name(copied: Path, name: str, value: float, message: str) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors[f"{PREFIX}{name}"][3] = value
    save_file(tensors, copied / "model.safetensors")

    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"headroom": {"quantization": {"format": "w4a4"}}}, "format is 'w8a8-1'"),
        ({"headroom": {"quantization": "w8a8-1"}}, "format is 'w8a8-1'"),
        ({"headroom": {}}, "unquantized checkpoint"),
        ({"headroom": {}, "quantization_config": None}, "int8, not floating point"),
        ({"quantization_config": {"quant_method": "gptq"}}, "unquantized checkpoint"),
    ],
)
def test_other_formats_are_refused_by_name(copied: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(copied, **changes)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(copied)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_overflows_gives_no_score(copied: Path, dtype: str) -> None:
    """Weights so large that scores overflow, as a broken export leaves them: the file itself is finite."""
    tensors = load_file(copied / "model.safetensors")
    for part in ("query", "key"):
        tensors[f"{PREFIX}attention.self.{part}.weight_scale"] *= 1e30
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    assert not np.isfinite(load(copied, dtype).score(PAIRS).logits).any()


def test_calibration_needs_a_pair(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="at least one pair"):
        quantize(tiny_checkpoint, tmp_path / "int8", [])
