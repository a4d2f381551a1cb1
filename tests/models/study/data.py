"""Small judged data for the studies' tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models import Classifier
from models.quality.labelled import LabelledPair
from models.study.base import Judged
from models.study.runner import Runner
from models.study.study import Study

WORDS = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel", "tool", "case", "phone"]


def judged(queries: int = 14, seed: int = 0) -> Judged:
    """Queries of 1 to 7 titles with random grades."""
    rng = np.random.default_rng(seed)
    rows = [
        LabelledPair(f"{WORDS[query % 7]} {query}", " ".join(rng.choice(WORDS, 4)), int(rng.integers(0, 5)))
        for query in range(queries)
        for _ in range(1 + query % 7)
    ]
    return Judged.of(rows, "pairs.csv")


def study(classifier: Classifier, out: Path, data: Judged | None = None) -> Study:
    data = data or judged()
    return Study(classifier, data, Runner(classifier, data), out, resamples=200)
