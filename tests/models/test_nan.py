"""NaN in what a pair's tokens enter with is NaN in that pair's logits, and in no other pair's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models import Classifier
from models.compress.quantize import quantize
from models.ops import kernel_library
from tests.checkpoints import WORDS, write_checkpoint
from tests.modernberts import write_modernbert

WORD = "keyboard"


def pairs() -> list[tuple[str, str]]:
    """Pairs of two to twenty words; every fourth title holds WORD."""
    rng = np.random.default_rng(0)
    words = [word for word in WORDS if word != WORD]
    titles = [list(rng.choice(words, rng.integers(1, 19))) for _ in range(24)]
    for title in titles[::4]:
        title.insert(int(rng.integers(0, len(title) + 1)), WORD)
    return [(str(rng.choice(words)), " ".join(title)) for title in titles]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT and a ModernBERT whose heads and rows the kernels compute, as floats and in int8."""
    directory = tmp_path_factory.mktemp("nan")
    written = {
        "bert": write_checkpoint(directory / "bert", hidden_size=64, intermediate_size=96),
        "modernbert": write_modernbert(directory / "modernbert", hidden_size=64, intermediate_size=48),
    }
    for name in tuple(written):
        tokenizer = Classifier.load(written[name], "cpu", "float32").tokenizer
        quantize(written[name], directory / f"{name}-int8", tokenizer.encode(pairs()))
        written[f"{name}-int8"] = directory / f"{name}-int8"
    return written


@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "bert-int8", "modernbert", "modernbert-int8"])
def test_a_token_that_is_not_a_number_spoils_its_pair_and_no_other(
    checkpoints: dict[str, Path],
    name: str,
    dtype: str,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(kernel_library, "best", lambda: None)
    clf = Classifier.load(checkpoints[name], "cpu", dtype)
    assert (clf.network.ops.kernels is not None) == (compiled and kernel_library.best() is not None)
    encoded = clf.tokenizer.encode(pairs())
    clean = clf.forward(encoded)
    embeddings = clf.network.word_embeddings
    token = set(encoded[0].ids.tolist()).difference(*(pair.ids.tolist() for pair in encoded[1:4]))
    spoilt_ids = [only for only in token if all(only in encoded[row].ids for row in range(0, 24, 4))]
    embeddings[spoilt_ids[0], 3] = torch.nan

    spoilt = clf.forward(encoded)

    held = np.array([spoilt_ids[0] in pair.ids for pair in encoded])
    assert 0 < held.sum() < len(held)
    assert np.isnan(spoilt[held]).all()
    np.testing.assert_array_equal(spoilt[~held], clean[~held])


@pytest.mark.parametrize("name", ["bert", "bert-int8", "modernbert", "modernbert-int8"])
def test_a_norm_that_holds_nan_spoils_every_pair(checkpoints: dict[str, Path], name: str) -> None:
    clf = Classifier.load(checkpoints[name], "cpu", "float32")
    norms = [part for part in clf.network._parts.values() if hasattr(part, "eps")]
    norms[-1 if name.startswith("modern") else 0].bias[5] = torch.nan
    assert np.isnan(clf.forward(clf.tokenizer.encode(pairs()))).all()
