"""Checkpoints of every family are pruned, and are written back as their own kind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from headroom import HeadMask
from headroom.models.compress.prune import prune
from tests import families, own_code
from tests.checkpoints import load
from tests.models.reference import reference

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = [("angle bracket", "steel angle, 12-gauge"), ("usb lamp", "wood deck screws"), ("tool", "")]

every_family = pytest.mark.parametrize("family", [*families.FAMILIES, *own_code.FAMILIES])


@every_family
def test_a_pruned_checkpoint_scores_as_the_mask_did(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    mask = HeadMask.parse("0.1,1.*", layers=3, heads=4)
    prune(checkpoints[family], tmp_path / "pruned", mask)
    pruned, masked = load(tmp_path / "pruned"), load(checkpoints[family]).score(PAIRS, mask)
    np.testing.assert_allclose(pruned.score(PAIRS).logits, masked.logits, atol=1e-5)
    prefixes = {name.split(".")[0] for name in load_file(tmp_path / "pruned" / "model.safetensors")}
    assert prefixes == {name.split(".")[0] for name in load_file(checkpoints[family] / "model.safetensors")}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_checkpoint_pruned_of_nothing_loads_in_transformers(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    weights = np.ones((3, 4), np.float32)
    weights[1, 2] = 0.5
    prune(checkpoints[family], tmp_path / "scaled", HeadMask(weights))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "scaled", dtype=torch.float32)
    encoded = load(checkpoints[family]).tokenizer.encode(PAIRS)
    ours = load(tmp_path / "scaled").score(PAIRS).logits
    np.testing.assert_allclose(reference(model.eval(), encoded, torch.float32), ours, atol=1e-5)
