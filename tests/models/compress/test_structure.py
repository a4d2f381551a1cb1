"""Without its units and layers a checkpoint scores as under the mask, and its files say what is left."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from headroom import HeadMask, ModelError, UnsupportedCheckpoint
from headroom.models.checkpoint.config import read_config
from headroom.models.compress.prune import prune, transformers_refusal
from tests.checkpoints import WORDS, load
from tests.models.reference import reference
from tests.modernberts import write_modernbert

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("usb lamp", "a lamp with a usb charger and a cable, in white and in black"),
]


def mask_of(form: dict[str, object], layers: int = 3, units: int = 64) -> HeadMask:
    return HeadMask.parse(form, layers=layers, heads=4, units=units)


def test_modernbert_without_a_layer_keeps_the_windows_of_the_others(tmp_path: Path) -> None:
    source = write_modernbert(tmp_path / "whole", classifier_pooling="mean")
    whole = load(source)
    units = whole.config.intermediate_size
    mask = mask_of({"off": [[1, 0]], "skip": [2], "units": "0.0-7,1.16-23,3.0-15"}, 4, units)
    pairs = [*PAIRS, ("red towel", " ".join(WORDS))]

    prune(source, tmp_path / "pruned", mask)

    pruned = load(tmp_path / "pruned")
    np.testing.assert_allclose(pruned.score(pairs).logits, whole.score(pairs, mask).logits, atol=3e-5)
    with pytest.raises(ModelError, match="layer 0 of a modernbert cannot be removed"):
        prune(source, tmp_path / "other", mask_of({"skip": [0]}, 4, units))


def test_transformers_loads_what_has_fewer_layers_and_equal_widths(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = prune(tiny_checkpoint, tmp_path / "pruned", mask_of({"skip": [1], "units": "0.0-31,2.32-63"}))

    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "pruned").eval()
    ours = load(tmp_path / "pruned")
    encoded = ours.tokenizer.encode(PAIRS)
    np.testing.assert_allclose(ours.forward(encoded), reference(theirs, encoded, torch.float32), atol=1e-5)
    assert transformers_refusal(config) is None
    raw = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert (raw["num_hidden_layers"], raw["intermediate_size"]) == (2, 32)


def test_different_widths_are_said_in_config_json_and_checked_when_it_is_read(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = prune(tiny_checkpoint, tmp_path / "pruned", mask_of({"units": "0.0-31,1.*"}))

    refusal = transformers_refusal(config)
    assert refusal is not None
    assert "different numbers of feed-forward units" in refusal
    file = tmp_path / "pruned" / "config.json"
    raw = json.loads(file.read_text())
    assert raw["headroom"]["intermediate_sizes"] == [32, 1, 64]  # the one unit that stays has weight 0
    for wrong in ([32, 64], [32, 0, 64], [32, 65, 64], "32"):
        file.write_text(json.dumps(raw | {"headroom": {"intermediate_sizes": wrong}}))
        with pytest.raises(UnsupportedCheckpoint, match="must hold a number from 1 to 64 for each layer"):
            read_config(tmp_path / "pruned")
