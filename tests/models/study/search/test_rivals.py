"""Whether a search found heads, or only how many of each layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.study.search import rivals
from tests.models.study.planted import NEEDED, planted_study


def test_rivals_keep_as_many_heads_of_each_layer() -> None:
    weights = (np.random.default_rng(0).random((4, 6)) < 0.5).astype(np.float32)
    held = tuple((layer, head) for layer in range(4) for head in range(6))

    others = rivals.masks(weights, held, 5, 0)

    assert len(others) == 5
    assert all((mask.sum(1) == weights.sum(1)).all() for mask in others)
    assert len({mask.tobytes() for mask in others}) > 1


def test_where_two_heads_do_all_the_work_their_layers_alone_do_not_explain_the_mask(tmp_path: Path) -> None:
    study = planted_study(tmp_path)
    assert study.holdout_runner is not None
    weights = np.zeros(study.shape, np.float32)
    for head in NEEDED:
        weights[head] = 1

    intact, quality = study.holdout_runner.evaluate([np.ones(study.shape, np.float32), weights])
    found = rivals.compete(study, intact, weights, quality)

    assert found.only_layers is False
    same = {metric: np.full(20, value) for metric, value in found.chosen.items()}
    assert replace(found, random=same).only_layers is True


@pytest.mark.parametrize(("sets", "verdict"), [(20, True), (5, None)])
def test_too_few_rivals_or_an_undefined_metric_decide_nothing(sets: int, verdict: bool | None) -> None:
    nan = float("nan")
    random = {"qwk": np.zeros(sets), "ndcg10": np.full(sets, nan)}
    assert rivals.Rivals({"qwk": 0.0, "ndcg10": nan}, random).only_layers is verdict
