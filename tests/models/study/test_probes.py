"""Probes find in each layer's output what the planted heads write there, and not before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headroom.models.study import probes
from headroom.models.study.study import QUICK
from tests.models.study.planted import planted_study


def test_term_overlap_and_grade_are_told_from_the_layers_that_compute_them(tmp_path: Path) -> None:
    found = probes.probe(replace(planted_study(tmp_path, holdout=False), effort=QUICK))
    overlap = found["overlap"].accuracy
    assert overlap[0] < 0.95
    assert overlap[1] > 0.98, "head 0.0 writes whether the equal word is in the other text"
    grade = found["grade"].accuracy
    assert max(grade[:2]) < 0.5
    assert min(grade[2:]) > 0.6, "head 1.0 takes that into every token"
    assert found["position"].control[0] < 0.8 < found["position"].accuracy[0]


def test_a_probe_that_only_knows_pieces_is_not_selective() -> None:
    """A state that names its piece tells any label that goes by the piece, a random one too."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 20, 2000)
    states = np.eye(20, dtype=np.float32)[kinds]
    folds = np.arange(2000) % probes.FOLDS
    task = probes.ProbeTask(np.arange(2000), kinds % 2, kinds, folds)
    control = probes._control(task, seed=0)
    assert probes._hits(states, (task.labels, control), folds).mean(1).tolist() == [1, 1]
    alone = rng.normal(size=(2000, 20)).astype(np.float32)
    assert probes._hits(alone, (task.labels,), folds).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("word", "wanted"), [("the", 0), ("with", 0), ("12v", 1), ("lamp,", 2), ("회식", None), ("&", None)]
)
def test_classes_of_words_are_closed_digits_and_others(word: str, wanted: int | None) -> None:
    assert probes._word_class(word) == wanted
