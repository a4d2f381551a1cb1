"""The network that studies look into is the one that serves."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models import Classifier, HeadMask
from models.batch import pack
from models.compress.prune import prune
from models.study.gradients import gated_logits, states

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("angle bracket", "wood deck screws, pack of 100"),
    ("usb lamp", "a lamp with a usb charger and a cable, in white and in black"),
    ("towel", "kitchen towel"),
]


@pytest.mark.parametrize("pruned", ["none", "0.1-2,1.*"])
def test_gated_logits_are_the_encoders_logits(tiny_checkpoint: Path, tmp_path: Path, pruned: str) -> None:
    prune(tiny_checkpoint, tmp_path / "model", HeadMask.parse(pruned, layers=3, heads=4))
    clf = Classifier.load(tmp_path / "model", "cpu", "float32")
    weights = np.random.default_rng(0).uniform(0, 2, (3, 4)).astype(np.float32)
    encoded = clf.tokenizer.encode(PAIRS)
    batch = pack(encoded, device=clf.network.device, fill=False)
    heads = torch.from_numpy(weights).expand(batch.rows, 3, 4)
    units = torch.ones(batch.rows, 3, max(clf.config.widths))

    logits = np.empty((len(PAIRS), 5), np.float32)
    logits[batch.order] = gated_logits(clf.network.in_plain_torch(), batch, heads, units).detach().numpy()

    np.testing.assert_allclose(logits, clf.forward(encoded, weights), atol=2e-5)


def test_last_state_is_what_the_encoder_classifies(clf: Classifier) -> None:
    encoded = clf.tokenizer.encode(PAIRS)
    order, (*_, last) = states(clf.network, encoded, [np.arange(len(pair)) == 0 for pair in encoded])

    logits = clf.network.classify(torch.from_numpy(last)).numpy()
    np.testing.assert_allclose(logits, clf.forward(encoded)[order], atol=2e-5)
