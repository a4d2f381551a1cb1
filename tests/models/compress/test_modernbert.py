"""ModernBERT pruned and in int8: one map for queries, keys and values, a gated feed-forward network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models import Classifier, HeadMask
from models.batch import pack
from models.compress.prune import prune
from models.compress.quantize import quantize
from tests.checkpoints import WORDS
from tests.models.reference import CPU
from tests.modernberts import write_modernbert

LAYERS, HEADS = 4, 4
PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("usb lamp", "a lamp with a usb charger and a cable, in white and in black"),
    ("red towel", " ".join(WORDS)),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spec", ["1.2", "0.1,2.*", "0-1.*", "random:0.5@3"])
def test_prune_then_score_is_mask_then_score(tmp_path: Path, spec: str, *, bias: bool) -> None:
    source = write_modernbert(tmp_path / "whole", attention_bias=bias, classifier_pooling="mean")
    whole = Classifier.load(source, "cpu", "float32")
    mask = HeadMask.parse(spec, layers=LAYERS, heads=HEADS)

    prune(source, tmp_path / "pruned", mask)
    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32")

    np.testing.assert_allclose(pruned.score(PAIRS).logits, whole.score(PAIRS, mask).logits, atol=2e-5)
    off = len(mask.off) * 8 * (4 * 32 + (3 if bias else 0))
    assert pruned.network.parameters == whole.network.parameters - off


@pytest.fixture(scope="module")
def int8_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("modernbert")
    source = write_modernbert(directory / "float", initializer_range=0.2)
    rng = np.random.default_rng(0)
    texts = [
        (" ".join(rng.choice(WORDS, rng.integers(1, 4))), " ".join(rng.choice(WORDS, rng.integers(2, 14))))
        for _ in range(150)
    ]
    quantize(source, directory / "int8", Classifier.load(source, "cpu", "float32").tokenizer.encode(texts))
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", ["none", "0.1,2.*", "0-1.*", "random:0.5@3"])
def test_int8_scores_are_the_float_ones_under_any_mask(int8_checkpoint: Path, spec: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    pairs = [
        (" ".join(rng.choice(WORDS, rng.integers(1, 4))), " ".join(rng.choice(WORDS, rng.integers(2, 14))))
        for _ in range(40)
    ]
    mask = HeadMask.parse(spec, layers=LAYERS, heads=HEADS)
    whole = Classifier.load(int8_checkpoint / "float", "cpu", "float32")
    int8 = Classifier.load(int8_checkpoint / "int8", "cpu", dtype)

    exact, ours = whole.score(pairs, mask), int8.score(pairs, mask)

    error = np.sqrt(np.square(ours.logits - exact.logits).mean()) / exact.logits.std(axis=0).mean()
    assert error < 0.12  # the bound of BERT's int8
    assert int8.network.parameters == whole.network.parameters
    assert int8.network.nbytes < whole.network.nbytes
    plain = int8.network.in_plain_torch()  # studies of an int8 checkpoint
    np.testing.assert_allclose(
        plain.forward(pack(int8.tokenizer.encode(pairs), device=CPU), mask.matrix), exact.logits, atol=0.5
    )


def test_an_int8_checkpoint_can_be_pruned(int8_checkpoint: Path, tmp_path: Path) -> None:
    mask = HeadMask.parse("0.1,1.*,3.2", layers=LAYERS, heads=HEADS)
    prune(int8_checkpoint / "int8", tmp_path / "pruned", mask)

    expected = Classifier.load(int8_checkpoint / "int8", "cpu", "float32").score(PAIRS, mask).logits
    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32").score(PAIRS).logits

    np.testing.assert_allclose(pruned, expected, atol=0.02 * np.abs(expected).max())
