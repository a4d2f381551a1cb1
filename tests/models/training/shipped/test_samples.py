"""The committed samples, which the README's examples and the studies run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.quality.evaluation import Evaluation
from models.quality.labelled import read_labelled
from models.training.shipped.judged import Judged
from models.training.shipped.samples import SETS, sampled

SAMPLES = Path(__file__).parents[4] / "data" / "sample"


def test_no_query_is_both_calibrated_on_and_reported_on_and_enough_are_ranked() -> None:
    sets = {name: read_labelled(SAMPLES / f"{name}.jsonl.gz", grades=5) for name in SETS}
    queries = {name: {pair.query for pair in pairs} for name, pairs in sets.items()}
    assert not queries["calibration"] & queries["test"]
    for pairs in sets.values():
        assert {pair.grade for pair in pairs} == {0, 1, 2, 3, 4}
        assert len({(pair.query, pair.title) for pair in pairs}) == len(pairs)
        grades = [pair.grade for pair in pairs]
        evaluation = Evaluation([pair.query for pair in pairs], grades, np.eye(5)[grades])
        assert len(evaluation.ranked_queries) >= 100


def test_text_that_may_not_be_copied_is_left_out_and_entities_are_few() -> None:
    rows = [
        Judged(f"q{number % 2}", f"t{number}", 1, source, 2)
        for source in ("esci_us_150q", "chorus_icecat", "dbpedia_entity_v2")
        for number in range(100)
    ]
    written = list(sampled(rows))
    assert not any(row.source.startswith("chorus") for row in written)
    assert sum(row.source.startswith("esci") for row in written) == 100
    assert sum(row.source.startswith("dbpedia") for row in written) == 40
