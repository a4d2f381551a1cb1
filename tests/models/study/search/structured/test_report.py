"""A whole search by time: what it reports, the files that it leaves, and the checkpoint that it trains."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from models import Classifier, HeadMask, ModelError
from models.checkpoint.config import read_config, read_stored_masks
from models.compress.prune import prune, read_scales
from models.study import search
from models.study.effort import QUICK
from models.study.result import Result
from models.study.search.structured import recovery
from models.study.study import Study
from tests.models.study.latencies import linear_table
from tests.models.study.planted import HEADS, LAYERS, NEEDED, planted_study

STEPS = 16


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    directory = tmp_path_factory.mktemp("by time")
    study = planted_study(directory / "model", queries=10, titles=4, testable=True)
    clf = study.classifier
    about = {"hidden_size": clf.config.hidden_size, "head_size": clf.config.head_size}
    table = replace(
        linear_table(clf.config, unit=0.01), about=about | {"number_format": clf.network.number_format}
    )
    cost = directory / "cost.json"
    cost.write_text(json.dumps({"cost": table.to_json()}))
    return replace(
        study, what=("heads", "units", "layers"), speedup=3.0, cost=cost, out=directory / "out",
        recover_minutes=(STEPS + 1) / 60, effort=replace(QUICK, rounds=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    """Every look at the clock of the training is a second later, so both networks train for STEPS steps."""
    seconds = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)), time_ns=time.time_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "time", clock)
        return search.run(study)


def test_the_chosen_network_has_the_needed_heads_and_the_wanted_speed(result: Result) -> None:
    chosen = result.json["chosen"]
    assert chosen["speedup_wanted"] == 3
    assert chosen["speedup_predicted"] >= 3
    assert chosen["qwk"] == 1
    assert chosen["holdout"]["passed"]
    kept = HeadMask.parse(chosen["spec"], layers=LAYERS, heads=HEADS)
    assert set(NEEDED) <= {tuple(head) for head in np.argwhere(kept.matrix)}
    assert set(kept.skipped) <= {2, 3}
    assert (chosen["layers_on"], chosen["heads_on"]) == (kept.layers_on, kept.heads_on)


def test_the_path_goes_from_slow_to_fast_with_intervals(result: Result) -> None:
    path = result.json["path"]
    assert [point["speedup_wanted"] for point in path] == [1.25, 1.5, 2, 2.5, 3, 4]
    for point in path:
        low, high = point["interval"]["qwk"]
        assert low <= point["qwk"] <= high
        assert point["speed"]["pairs_per_second"] > 0
        assert set(point["holdout"]["loss"]) == {"qwk", "ndcg10"}
    methods = {point["method"] for point in result.json["other_orders"]}
    assert methods == {"magnitude", "top layers dropped", "random"}
    json.dumps(result.json, allow_nan=False)


def test_mask_file_is_a_stored_mask_of_the_model(result: Result, study: Study, tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "fast.json").write_text(result.files["mask.json"])
    stored = read_stored_masks(tmp_path, read_config(Path(str(study.model))))
    assert stored["fast"].spec == result.json["chosen"]["spec"]


def test_scales_file_makes_a_checkpoint_of_that_quality(result: Result, study: Study, tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text(result.files["scales.json"])
    prune(Path(str(study.model)), tmp_path / "pruned", read_scales(tmp_path / "scales.json"))
    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32")
    assert study.holdout is not None
    grades = pruned.score(study.holdout.pairs).grade
    expected = result.json["chosen_tuned"]["holdout"]["accuracy"]
    assert float((grades == study.holdout.grade).mean()) == pytest.approx(expected)


def test_the_trained_checkpoint_is_written_and_judged(result: Result, study: Study) -> None:
    recovered = result.json["recovered"]
    trained = Classifier.load(study.out / recovered["directory"], "cpu", "float32")
    assert trained.num_layers == result.json["chosen"]["layers_on"]
    assert recovered["steps"] == STEPS
    assert recovered["holdout"]["passed"]
    assert "minutes of distillation" in result.conclusion


def test_the_recovered_network_s_test_is_said_to_come_on_top_of_the_error_rate(
    result: Result,
) -> None:
    """Plain and tuned networks have spent all of the 5 % before."""
    (test,) = [section for section in result.sections if "held-out" in section.title]
    assert "recovered network gets a further test" in " ".join(test.paragraphs)
    assert "outside of the 5 % error rate" in result.conclusion


def test_a_network_of_the_same_shape_is_trained_from_random_weights_beside_it(
    result: Result, study: Study
) -> None:
    scratch = result.json["from_scratch"]
    trained = Classifier.load(study.out / scratch["directory"], "cpu", "float32")
    assert trained.network.parameters == Classifier.load(study.out / "recovered").network.parameters
    assert scratch["steps"] == STEPS
    assert scratch["holdout"]["qwk"] < result.json["recovered"]["holdout"]["qwk"]  # too few steps to learn
    assert "from random weights" in result.conclusion


def test_figures_can_be_drawn(result: Result) -> None:
    names = [figure.name for section in result.sections for figure in section.figures]
    assert names == ["search_speed", "search_held_out", "search_removed"]
    for section in result.sections:
        for figure in section.figures:
            figure.draw().canvas.draw()


def test_a_speed_that_nothing_has_is_refused(study: Study) -> None:
    with pytest.raises(ModelError, match="no network is 15 times as fast without some heads"):
        search.run(replace(study, what=("heads",), speedup=15.0))


def test_cost_json_is_the_table_that_was_used(result: Result) -> None:
    assert set(json.loads(result.files["cost.json"])["cost"]) == set(result.json["cost"])
