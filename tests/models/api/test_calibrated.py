"""Scores that are probabilities, from Python."""

from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier, ModelError, calibrate
from tests.checkpoints import random_pairs


def test_a_calibrated_copy_is_written_from_rows(tiny_checkpoint: Path, tmp_path: Path) -> None:
    clf = Classifier.load(tiny_checkpoint, "cpu", "float32")
    pairs = random_pairs(240)
    rng = np.random.default_rng(0)
    guess = rng.integers(0, len(clf.grades), len(pairs))
    grades = np.where(rng.random(len(pairs)) < 0.7, clf.score(pairs).grade, guess)
    rows = [
        (f"lamp {row // 8}", title, int(grade))
        for row, ((_, title), grade) in enumerate(zip(pairs, grades, strict=True))
    ]

    made = calibrate(clf, rows, tmp_path / "fair")

    assert made.load("cpu", "float32").grades == clf.grades
    table = made.to_frame().set_index("metric")
    assert list(table.columns) == ["before", "after", "change", "low", "high"]
    assert table.loc["log_loss", "after"] == made.document["metrics"]["log_loss"]["after"].value
    assert "each fifth of them judged with what the others choose" in str(made)
    with pytest.raises(ModelError, match="fair is not empty"):
        calibrate(clf, rows, tmp_path / "fair")
    with pytest.raises(ModelError, match="relevant: the model has grades"):
        calibrate(clf, rows, tmp_path / "other", relevant=1)
