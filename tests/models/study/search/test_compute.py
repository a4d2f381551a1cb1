"""The search keeps the heads that matter, proves it on other queries, and hands over deployable files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from models import Classifier, HeadMask, ModelError
from models.checkpoint.config import read_config, read_stored_masks
from models.compress.prune import prune, read_scales
from models.study import search
from models.study.base import Judged
from models.study.effort import QUICK
from models.study.result import Result
from models.study.runner import Runner
from models.study.search import compute
from models.study.study import Study
from tests.models.study.planted import HEADS, LAYERS, NEEDED, planted_pairs, planted_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return planted_study(tmp_path_factory.mktemp("search"), queries=10, testable=True)


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    return search.run(study)


def test_only_the_heads_that_the_grade_needs_are_kept(result: Result) -> None:
    chosen = HeadMask.parse(result.json["chosen"]["spec"], layers=LAYERS, heads=HEADS)

    assert {tuple(head) for head in np.argwhere(chosen.matrix)} == set(NEEDED)
    assert result.json["chosen"]["holdout"]["passed"]
    assert result.json["chosen"]["holdout"]["loss"]["qwk"]["bound"] == 0
    assert "keeps 2 of 24 heads" in result.conclusion


def test_the_sequence_ends_where_a_needed_head_goes(result: Result) -> None:
    path = result.json["path"]

    assert [point["heads_on"] for point in path] == sorted((p["heads_on"] for p in path), reverse=True)
    assert [p["holdout"]["passed"] for p in path] == [p["heads_on"] >= 2 for p in path]
    last = path[-1]
    assert last["heads_on"] == 1
    assert last["qwk"] < 0.5
    assert last["holdout"]["tested"]


def test_report_names_every_method_and_its_quality(result: Result) -> None:
    others = result.json["other_orders"]

    assert {point["method"] for point in others} == {
        "diagonal Fisher",
        "Michel et al. 2019",
        "magnitude",
        "lower layers only",
        "random",
    }
    assert sum(point["method"] == "random" for point in others) == 20 * len(compute.RANDOM_KEPT)
    for point in (*result.json["path"], *others):
        assert {"accuracy", "macro_f1", "qwk", "ndcg10", "spec"} <= point.keys()
    json.dumps(result.json, allow_nan=False)


def test_mask_file_is_a_stored_mask_of_the_model(result: Result, study: Study, tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "smallest.json").write_text(result.files["mask.json"])

    stored = read_stored_masks(tmp_path, read_config(Path(str(study.model))))

    assert stored["smallest"].spec == result.json["chosen"]["spec"]


def test_scales_file_makes_a_checkpoint_of_that_quality(result: Result, study: Study, tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text(result.files["scales.json"])
    scales = read_scales(tmp_path / "scales.json")

    prune(Path(str(study.model)), tmp_path / "pruned", scales)

    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32")
    assert study.holdout is not None
    grades = pruned.score(study.holdout.pairs).grade
    accuracy = float((grades == study.holdout.grade).mean())
    assert accuracy == pytest.approx(result.json["chosen_tuned"]["holdout"]["accuracy"])


def test_speed_is_measured_for_every_way_to_run_the_chosen_heads(result: Result) -> None:
    ways = {way["name"]: way for way in result.json["speed"]}

    assert list(ways) == [
        "intact",
        "mask at run time",
        "pruned checkpoint",
        "pruned checkpoint, tuned scales",
    ]
    assert all(way["pairs_per_second"] > 0 for way in ways.values())
    assert ways["pruned checkpoint"]["parameters"] < ways["intact"]["parameters"]
    assert ways["pruned checkpoint"]["held_out"]["qwk"] == pytest.approx(
        result.json["chosen"]["holdout"]["qwk"]
    )


def test_figures_can_be_drawn(result: Result) -> None:
    names = [figure.name for section in result.sections for figure in section.figures]

    assert names == ["search_path", "search_holdout", "search_mask"]
    for section in result.sections:
        for figure in section.figures:
            figure.draw().canvas.draw()


def test_queries_of_the_search_are_refused_as_holdout(study: Study) -> None:
    with pytest.raises(ModelError, match="shares 10 queries"):
        search.run(dataclasses.replace(study, holdout=study.data, holdout_runner=study.runner))


def test_without_a_holdout_no_mask_is_chosen(tmp_path: Path) -> None:
    result = search.run(planted_study(tmp_path, queries=3, titles=3, holdout=False))

    assert result.json["chosen"] is None
    assert result.files == {}
    assert "nothing is chosen" in result.conclusion
    assert [finding.replicates for finding in result.findings] == [None]


def test_a_stopped_search_keeps_its_gradients_and_scales(tmp_path: Path) -> None:
    study = planted_study(tmp_path, queries=3, titles=3, holdout=False)
    runner = Runner(study.classifier, study.data, cache=tmp_path / "cache", identity="planted")
    kept = dataclasses.replace(study, runner=runner)
    first = compute.gate_gradients(kept)
    (file,) = (tmp_path / "cache").glob("*.npy")
    np.save(file, first + 1)

    assert np.array_equal(compute.gate_gradients(kept), first + 1)
    other = dataclasses.replace(kept, runner=Runner(study.classifier, study.data, cache=tmp_path / "cache"))
    assert np.array_equal(compute.gate_gradients(other), first)


@pytest.mark.parametrize(("queries", "titles"), [(12, 1), (34, 4)])
def test_with_few_ranked_queries_a_search_chooses_nothing_and_says_why(
    tmp_path: Path, queries: int, titles: int
) -> None:
    study = planted_study(tmp_path, queries=3, titles=3, holdout=False)
    held_out = Judged.of(planted_pairs(queries, titles, seed=1), "few")
    runner = Runner(study.classifier, held_out)

    result = search.run(dataclasses.replace(study, holdout=held_out, holdout_runner=runner, effort=QUICK))

    assert result.json["chosen"] is None
    assert result.json["path"][0]["holdout"]["loss"]["ndcg10"]["queries_needed"] is None
    assert result.files == {}
    assert (
        f"Too few queries: {held_out.ranked_queries} of the {queries} held-out queries" in result.conclusion
    )
    assert "too few queries" in str(result.sections[1].tables)
    assert "0 queries are needed" not in result.conclusion
    texts = [result.conclusion, *(str(section.tables) for section in result.sections[1:])]
    assert not any(word in text for text in texts for word in ("nan", "inf "))
