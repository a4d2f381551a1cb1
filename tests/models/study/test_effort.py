"""`--quick` answers from little, and its report says so and what it left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.study import duration, inputs, kinds, report_files
from models.study.effort import QUICK, left_out
from models.study.gradients import DifferentiableNetwork
from models.study.search.tuning import tuned_scales
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

    study = planted_study(tmp_path, queries=10, testable=True)
    study.runner.progress = study.holdout_runner.progress = stages = Stages()  # type: ignore[union-attr]
    study = dataclasses.replace(study, progress=stages, effort=QUICK)
    for kind in ("single", "layers", "search"):
        said.clear()
        kinds.run(kind, study)
        planned = [what for what, _ in duration.stages(kind, study)]
        assert [what for what in said if what in planned] == planned, kind
        assert all(seconds > 0 for _, seconds in duration.forecast(kind, study)), kind


def test_a_forecast_tells_float32_work_from_the_passes_of_the_served_network(tmp_path: Path) -> None:
    """The operations that are counted, in passes of float32, are half to twice those that are planned."""
    study = planted_study(tmp_path, queries=40)
    plan = dict(duration.stages("search", study))
    assert plan["masks on the search data"].plain == 0
    assert {plan[what].masked for what in ("gradients of the mask", "tuned scales")} == {0}

    network = DifferentiableNetwork(study.classifier)
    pairs = study.classifier.tokenizer.encode(study.data.pairs)
    masks = [np.ones(study.shape, np.float32)] * len(study.effort.shares)
    with torch.inference_mode():
        whole = operations(
            lambda: [network.logits(b, torch.ones(b.rows, *study.shape)) for b in network.batches(pairs)]
        )
    gradients = operations(lambda: network.gate_gradients(pairs, study.data.grade))
    scales = operations(lambda: tuned_scales(network, pairs[:128], masks))
    for what, counted in (("gradients of the mask", gradients), ("tuned scales", scales)):
        passes = counted / whole * len(pairs)
        assert plan[what].plain / 2 <= passes <= plan[what].plain * 2, what


def test_a_forecast_counts_the_passes_under_masks(tmp_path: Path) -> None:
    study = dataclasses.replace(planted_study(tmp_path, queries=10), effort=QUICK)
    counts: dict[str, int] = {}

    class Stages:
        def start(self, what: str, total: int) -> None:
            counts[what] = total

        def advance(self, steps: int = 1) -> None: ...

    study.runner.progress = study.holdout_runner.progress = Stages()  # type: ignore[union-attr]
    kinds.run("search", study)
    plan = dict(duration.stages("search", study))
    for what in ("masks on the search data", "masks on the held-out queries"):
        assert plan[what].masked / 2 <= counts[what] <= plan[what].masked * 2, what


def operations(compute: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()
