"""Small judged data for the studies' tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson

from headroom import Classifier
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study import kinds
from headroom.models.study.page import Result
from headroom.models.study.pairs import Judged
from headroom.models.study.report_files import JSON
from headroom.models.study.runner import Runner
from headroom.models.study.study import QUICK, Study

WORDS = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel", "tool", "case", "phone"]


def judged(queries: int = 14, seed: int = 0) -> Judged:
    """Queries of 1 to 7 titles with random grades."""
    rng = np.random.default_rng(seed)
    rows = [
        LabelledPair(f"{WORDS[query % 7]} {query}", " ".join(rng.choice(WORDS, 4)), int(rng.integers(0, 5)))
        for query in range(queries)
        for _ in range(1 + query % 7)
    ]
    return Judged(rows, "pairs.csv")


def reported(kind: str, asked: Study) -> Result:
    """Run a study; its values are those of report.json."""
    result = kinds.run(kind, asked)
    return replace(result, json=orjson.loads(orjson.dumps(result.json, option=JSON)))


def drawn(result: Result) -> str:
    """Draw the picture of a report and return its name."""
    assert result.picture is not None
    result.picture.draw().canvas.draw()
    return result.picture.name


def study(classifier: Classifier, out: Path, data: Judged | None = None) -> Study:
    data = data or judged()
    return Study(classifier, data, Runner(classifier), out, effort=replace(QUICK, resamples=200))
