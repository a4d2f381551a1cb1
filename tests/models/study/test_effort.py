"""`--quick` answers from little, and its report says so and what it left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from models.study import duration, inputs, kinds, report_files
from models.study.effort import QUICK, left_out
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


def test_a_quick_search_says_that_it_is_rough_and_what_it_left_out(tmp_path: Path) -> None:
    study = dataclasses.replace(planted_study(tmp_path), effort=QUICK)

    result = kinds.run("search", study)
    content = report_files.write(study, result, result.sections)

    assert content["settings"]["quick"] is True
    assert len(content["path"]) == len(QUICK.shares)
    text = (study.out / "report.md").read_text()
    assert "This is a rough answer" in text
    assert "masks of 5 sizes instead of 19" in text
    assert "search: " in left_out("all")


def test_a_plan_names_the_stages_that_run_in_their_order(tmp_path: Path) -> None:
    said = []

    class Stages:
        def start(self, what: str, total: int) -> None:  # noqa: ARG002 - as Progress has it
            said.append(what)

        def advance(self, steps: int = 1) -> None: ...

    study = planted_study(tmp_path, queries=10)
    study.runner.progress = study.holdout_runner.progress = stages = Stages()  # type: ignore[union-attr]
    study = dataclasses.replace(study, progress=stages, effort=QUICK)
    for kind in ("single", "layers", "search"):
        said.clear()
        kinds.run(kind, study)
        planned = [what for what, _ in duration.stages(kind, study)]
        assert [what for what in said if what in planned] == planned, kind
    assert duration.seconds_per_pass(study) > 0
