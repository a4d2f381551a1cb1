"""Sharing layers between masks must not change a single answer."""

from pathlib import Path

import numpy as np
import pytest

from models import Classifier, HeadMask
from models.compress.prune import prune
from models.study.runner import Runner
from tests.models.study.data import judged


def many(layers: int, heads: int) -> list[np.ndarray]:
    """None; each head alone; whole layers from below and above; random ones; weights between 0 and 2."""
    none = np.ones((layers, heads), np.float32)
    masks = [none]
    for layer, head in np.ndindex(layers, heads):
        masks.append(none.copy())
        masks[-1][layer, head] = 0
    for layer in range(layers):
        masks += [none.copy(), none.copy()]
        masks[-2][: layer + 1] = 0
        masks[-1][layer:] = 0
    for seed in range(12):
        spec = f"random:0.{seed % 9 + 1}@{seed}"
        masks.append(HeadMask.parse(spec, layers=layers, heads=heads).matrix)
    masks.append(np.random.default_rng(0).uniform(0, 2, (layers, heads)).astype(np.float32))
    return masks


def one_by_one(classifier: Classifier, masks: list[np.ndarray]) -> np.ndarray:
    encoded = classifier.tokenizer.encode(judged().pairs)
    return np.stack([classifier.forward(encoded, mask) for mask in masks])


def test_a_deterministic_model_gives_the_very_same_bits(tiny_checkpoint: Path) -> None:
    classifier = Classifier.load(tiny_checkpoint, deterministic=True)
    masks = many(3, 4)
    assert np.array_equal(Runner(classifier, judged()).logits(masks), one_by_one(classifier, masks))


def test_single_precision_gives_the_same_logits(tiny_checkpoint: Path) -> None:
    classifier = Classifier.load(tiny_checkpoint, dtype="float32")
    masks = many(3, 4)
    expected = one_by_one(classifier, masks)
    assert Runner(classifier, judged()).logits(masks) == pytest.approx(expected, abs=1e-4)


def test_bfloat16_stays_as_near_to_single_precision_as_separate_passes(tiny_checkpoint: Path) -> None:
    masks = many(3, 4)
    exact = one_by_one(Classifier.load(tiny_checkpoint, dtype="float32"), masks)
    classifier = Classifier.load(tiny_checkpoint, dtype="bfloat16")
    allowed = 2 * np.abs(one_by_one(classifier, masks) - exact).max() + 1e-3
    assert np.abs(Runner(classifier, judged()).logits(masks) - exact).max() <= allowed


def test_masks_of_a_pruned_checkpoint_keep_the_old_numbers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    gone = HeadMask.parse("0.1,1.*,2.0-2", layers=3, heads=4)
    prune(tiny_checkpoint, tmp_path / "pruned", gone)
    whole = Classifier.load(tiny_checkpoint, dtype="float32")
    pruned = Classifier.load(tmp_path / "pruned", dtype="float32")
    masks = many(3, 4)
    expected = one_by_one(whole, [mask * gone.matrix for mask in masks])
    assert Runner(pruned, judged()).logits(masks) == pytest.approx(expected, abs=1e-4)
