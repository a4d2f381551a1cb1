"""Whether a search found heads, or only how many of each layer, can be told from its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.quality.evaluation import Evaluation
from models.study.heads import held_heads
from models.study.search import rivals, rivals_report
from tests.models.study.planted import NEEDED, planted_study


def test_rivals_keep_as_many_heads_and_the_matched_ones_as_many_of_each_layer() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.random((4, 6)) < 0.5).astype(np.float32)
    held = tuple((layer, head) for layer in range(4) for head in range(6))

    others = rivals.masks(weights, held, 5, 0)

    assert all(mask.sum() == weights.sum() for _, mask in others)
    matched = [mask for kind, mask in others if kind == rivals.MATCHED]
    assert len(matched) == 5
    assert all((mask.sum(1) == weights.sum(1)).all() for mask in matched)
    assert len({mask.tobytes() for mask in matched}) > 1
    (lowest,) = [mask for kind, mask in others if kind == rivals.LOWEST]
    assert lowest.flatten().tolist() == sorted(lowest.flatten().tolist(), reverse=True)


def test_where_two_heads_do_all_the_work_their_layers_alone_do_not_explain_the_mask(tmp_path: Path) -> None:
    study = planted_study(tmp_path)
    assert study.holdout_runner is not None
    weights = np.zeros(study.shape, np.float32)
    for head in NEEDED:
        weights[head] = 1
    ones = np.ones(study.shape, np.float32)

    intact, quality = study.holdout_runner.evaluate([ones, weights])
    rivalry = rivals.compete(study, intact, weights, quality)

    assert rivalry.only_layers is False
    assert "the choice within the layers matters too" in rivals_report.sentence(rivalry)
    same = rivals.Rivalry(
        2, rivalry.intact, rivalry.chosen, [rivals.Rival(rivals.MATCHED, weights, quality)] * 20
    )
    assert same.only_layers is True
    assert len(held_heads(study.classifier)) == 24


@pytest.mark.parametrize(
    ("sets", "verdict", "said"), [(20, True, "how many heads each layer"), (5, None, "open")]
)
def test_too_few_rivals_or_an_undefined_metric_decide_nothing(
    sets: int, verdict: bool | None, said: str
) -> None:
    names = [f"query {number}" for number in range(20)]
    grades = [number % 5 for number in range(20)]
    quality = Evaluation(names, grades, np.eye(5)[grades])  # one title per query: NDCG@10 is undefined
    others = [rivals.Rival(kind, np.ones((1, 1)), quality) for kind in (rivals.ANYWHERE, rivals.LOWEST)]
    matched = [rivals.Rival(rivals.MATCHED, np.ones((1, 1)), quality)] * sets
    rivalry = rivals.Rivalry(1, quality.metrics(), quality.metrics(), [*matched, *others])

    assert rivalry.only_layers is verdict
    assert said in rivals_report.sentence(rivalry)
    assert "nan" not in rivals_report.sentence(rivalry) + str(rivals_report.section(rivalry).tables)
