"""Tuned scales let the heads that stay do the work of those that went, and can be pruned in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models import Classifier
from models.compress.prune import prune
from models.study.gradients import DifferentiableNetwork
from models.study.search.tuning import LARGEST, least_squares, ridge_of, tuned_scales
from tests.checkpoints import random_model, write_vocabulary

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("angle bracket", "wood deck screws, pack of 100"),
    ("usb lamp", "a lamp with a usb charger and a cable, in white and in black"),
]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in which head 1.2 is a copy of head 1.0."""
    directory = tmp_path_factory.mktemp("twins")
    model = random_model(5)
    attention = model.bert.encoder.layer[1].attention
    projections = (attention.self.query, attention.self.key, attention.self.value)
    with torch.no_grad():
        for projection in projections:
            projection.weight[16:24] = projection.weight[0:8]
            projection.bias[16:24] = projection.bias[0:8]
        attention.output.dense.weight[:, 16:24] = attention.output.dense.weight[:, 0:8]
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return directory


def test_tuned_scales_let_one_twin_do_the_work_of_both(twins: Path, tmp_path: Path) -> None:
    clf = Classifier.load(twins, "cpu", "float32")
    encoded = clf.tokenizer.encode(PAIRS)
    mask = np.ones((3, 4), np.float32)
    mask[1, 2] = 0

    scales = tuned_scales(DifferentiableNetwork(clf), encoded, [mask])[0]

    expected = np.ones((3, 4))
    expected[1] = [2, 1, 0, 1]
    np.testing.assert_allclose(scales, expected, atol=0.03)
    intact, plain, tuned = (clf.forward(encoded, weights) for weights in (None, mask, scales))
    assert np.abs(tuned - intact).max() < 0.1 * np.abs(plain - intact).max()
    prune(twins, tmp_path / "pruned", scales)
    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32")
    np.testing.assert_allclose(pruned.forward(encoded), tuned, atol=2e-5)


def test_scales_stay_in_range_and_dead_heads_dead(tiny_checkpoint: Path) -> None:
    clf = Classifier.load(tiny_checkpoint, "cpu", "float32")
    encoded = clf.tokenizer.encode(PAIRS)
    masks = [np.zeros((3, 4), np.float32), np.eye(3, 4, dtype=np.float32)]

    all_scales = tuned_scales(DifferentiableNetwork(clf), encoded, masks)

    for mask, scales in zip(masks, all_scales, strict=True):
        assert ((scales >= 0) & (scales <= LARGEST)).all()
        assert (scales[mask == 0] == 0).all()


def test_heads_that_put_out_nothing_keep_their_scale_on_every_processor() -> None:
    """Intel's linear algebra takes the smallest numbers (denormals) for 0, and then divides by them."""
    assert ridge_of(0.0, 8) > np.finfo(np.float32).tiny
    assert least_squares([torch.zeros(40, 3)], [torch.zeros(40)]) == pytest.approx([1, 1, 1])
