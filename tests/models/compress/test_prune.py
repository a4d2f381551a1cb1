"""A pruned checkpoint scores as the mask did, and keeps the numbering of heads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import HeadMask, ModelError
from headroom.models.compress.prune import prune
from tests.checkpoints import load

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("angle bracket", "wood deck screws, pack of 100"),
    ("usb lamp", "a lamp with a usb charger and a cable, in white and in black"),
]
MASKS: list[Any] = [
    *("none", "1.2", "0.1,2.*", "0-1.*", "random:0.5@3", "keep:1.0"),
    {"weights": [[1, 0.5, 0, 1], [0.25, 0, 0, 0], [1, 1, 1, 0.125]]},
    {"off": [[0, 1], [2, 0]], "skip": [1]},
    {"units": "0.0-15,0.40-47,2.*", "skip": [1]},
    {"off": [[0, 0], [0, 1]], "units": "0.0-31,1.32-63,2.8-39"},
]


@pytest.mark.parametrize("value", MASKS, ids=str)
def test_prune_then_score_is_mask_then_score(tiny_checkpoint: Path, tmp_path: Path, value: Any) -> None:
    whole = load(tiny_checkpoint)
    mask = HeadMask.parse(value, layers=3, heads=4, units=64)

    prune(tiny_checkpoint, tmp_path / "pruned", mask)
    pruned = load(tmp_path / "pruned")

    np.testing.assert_allclose(pruned.score(PAIRS).logits, whole.score(PAIRS, mask).logits, atol=2e-5)
    assert pruned.num_layers == 3 - len(mask.skipped)
    if mask.structure:
        assert pruned.network.parameters < whole.network.parameters
    else:
        assert pruned.network.parameters == whole.network.parameters - len(mask.off) * 8 * (4 * 32 + 3)


def test_a_pruned_checkpoint_takes_masks_in_the_old_numbering_and_can_be_pruned_again(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    first, second = (HeadMask.parse(spec, layers=3, heads=4) for spec in ("0.0-1,1.3", "0.1-2,2.*"))
    whole = load(tiny_checkpoint)
    prune(tiny_checkpoint, tmp_path / "once", first)
    prune(tmp_path / "once", tmp_path / "twice", second)

    expected = whole.score(PAIRS, first * second).logits
    once = load(tmp_path / "once")
    twice = load(tmp_path / "twice")

    np.testing.assert_allclose(once.score(PAIRS, second).logits, expected, atol=1e-5)
    np.testing.assert_allclose(twice.score(PAIRS).logits, expected, atol=1e-5)
    config = json.loads((tmp_path / "twice" / "config.json").read_text())
    assert config["pruned_heads"] == {"0": [0, 1, 2], "1": [3], "2": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (HeadMask.none(12, 12), "3 of 4"),
        (HeadMask.parse({"units": "0.0-15"}, layers=3, heads=4, units=32), "of 32 units; .* 3 of 64"),
        (
            HeadMask.parse("0-2.*", layers=3, heads=4),
            "all 12 heads, and without any every pair gets the same score",
        ),
    ],
)
def test_a_mask_that_does_not_fit_or_keeps_no_head_is_refused_before_anything_is_written(
    tiny_checkpoint: Path, tmp_path: Path, mask: HeadMask, sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        prune(tiny_checkpoint, tmp_path / "pruned", mask)
    assert not (tmp_path / "pruned").exists()
