"""Calibration of the shipped model."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from default_model.build import calibrate, calibration
from default_model.mixture import Judged
from default_model.tuning import untuned
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.training.loop import logits_of
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.more


def test_calibration_finds_the_map_that_spoiled_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    fair = log_softmax(rng.normal(size=(20_000, 5)) * 1.5, axis=1)
    grades = np.array([rng.choice(5, p=np.exp(row)) for row in fair])
    spoiled = 3 * (fair - np.array([0.0, 0.5, -0.5, 0.2, -1.0]))
    temperature, biases = calibration(spoiled, grades.tolist(), ["one"] * len(grades))
    assert temperature == pytest.approx(3, rel=0.05)
    after = softmax(spoiled / temperature + biases, axis=1)
    for grade in range(5):
        assert after[:, grade].mean() == pytest.approx((grades == grade).mean(), abs=0.01)


def test_the_classifier_takes_the_calibration_up(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", num_labels=5)
    model = untuned(base)
    tokenizer = PairTokenizer.load(base, max_tokens=32, vocab_size=model.config.vocab_size)
    words = ("angle", "bracket", "lamp", "usb", "red")
    judged = [
        Judged(f"{one} {two}", two, n, "chorus_icecat", 2) for one in words for n, two in enumerate(words)
    ]
    before = logits_of(model, tokenizer, judged)
    found = calibrate(model, tokenizer, judged)
    wanted = softmax(before / found["temperature"] + found["bias"], axis=1)
    np.testing.assert_allclose(softmax(logits_of(model, tokenizer, judged), axis=1), wanted, atol=0.01)
