"""`--quick` answers from little, and its report says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from models.study import inputs, kinds, report_files
from models.study.effort import QUICK
from tests.models.study.data import judged
from tests.models.study.planted import planted_study


def test_a_quick_sample_keeps_queries_whole_enough_to_rank() -> None:
    data = judged(queries=70)

    sample = inputs.roughly(data, 80, 4, 0)

    assert len(sample) <= 80
    assert 10 <= len(sample.queries) <= 20
    assert np.bincount(sample.query_of).max() <= 7
    assert "--quick" in sample.note
    assert inputs.roughly(data, len(data), 4, 0) is data


def test_a_quick_search_says_that_it_is_rough(tmp_path: Path) -> None:
    study = dataclasses.replace(planted_study(tmp_path), effort=QUICK)

    content = report_files.write(study, kinds.run("search", study))

    assert content["settings"]["quick"] is True
    assert len(content["path"]) == len(QUICK.shares)
    assert "This is a rough answer" in (study.out / "report.md").read_text()
