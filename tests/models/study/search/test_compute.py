"""The search keeps the heads that matter, proves it on other queries, and hands over deployable files."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from headroom import HeadMask
from headroom.models.study.page import Result
from headroom.models.study.pairs import Judged
from headroom.models.study.study import QUICK, Study
from tests.models.study.data import drawn, reported
from tests.models.study.planted import HEADS, LAYERS, NEEDED, planted_pairs, planted_study

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    planted = planted_study(tmp_path_factory.mktemp("search"), queries=10, testable=True)
    shares = tuple(heads / (LAYERS * HEADS) for heads in (19, 10, 5, 2, 1))
    return dataclasses.replace(
        planted, effort=dataclasses.replace(QUICK, shares=shares, random_networks=20, rounds=1)
    )


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    return reported("search", study)


def test_only_the_heads_that_the_grade_needs_are_kept(result: Result) -> None:
    chosen = HeadMask.parse(result.json["chosen"]["spec"], layers=LAYERS, heads=HEADS)

    assert {tuple(head) for head in np.argwhere(chosen.matrix)} == set(NEEDED)
    assert result.json["chosen"]["holdout"]["passed"]
    loss = result.json["chosen"]["holdout"]["loss"]["ndcg10"]
    assert loss["delta"] == 0
    assert -0.02 < loss["bound"] < 0, "queries that are not in the sample may lose everything"
    assert result.verdict.startswith("The chosen network changes accuracy by less than 0.001")
    assert "It keeps 2 of 24 heads" in result.verdict


def test_the_sequence_ends_where_a_needed_head_goes(result: Result) -> None:
    path = result.json["path"]

    assert [point["heads_on"] for point in path] == sorted((p["heads_on"] for p in path), reverse=True)
    assert [p["holdout"]["passed"] for p in path] == [p["heads_on"] >= 2 for p in path]
    last = path[-1]
    assert last["heads_on"] == 1
    assert last["qwk"] < 0.5
    assert last["holdout"]["tested"]


def test_the_chosen_masks_speed_is_measured_and_it_is_compared_with_random_ones(result: Result) -> None:
    chosen = next(point for point in result.json["path"] if point["heads_on"] == 2)

    assert chosen["speed"]["pairs_per_second"] > 0
    assert result.json["chosen"]["speed"] == chosen["speed"]
    assert len(result.json["random"]) == 20
    (_, row, _) = result.sections[-1].tables[-1].rows
    assert row[0] == "QWK"
    assert row[2].startswith("−")  # the median of the random ones
    assert row[3] == "0.048"
    assert drawn(result) == "search"


def test_without_a_holdout_no_mask_is_chosen(tmp_path: Path) -> None:
    result = reported("search", planted_study(tmp_path, queries=3, titles=3, holdout=False))

    assert result.json["chosen"] is None
    assert set(result.files.values()) == {None}
    assert "Nothing is chosen" in result.verdict
    assert drawn(result) == "search"


@pytest.mark.parametrize(("queries", "titles"), [(12, 1), (34, 4)])
def test_with_few_ranked_queries_a_search_chooses_nothing_and_says_why(
    tmp_path: Path, queries: int, titles: int
) -> None:
    study = planted_study(tmp_path, queries=3, titles=3, holdout=False)
    held_out = Judged(planted_pairs(queries, titles, seed=1), "few")

    result = reported("search", dataclasses.replace(study, holdout=held_out, effort=QUICK))

    assert result.json["chosen"] is None
    needed = result.json["path"][0]["holdout"]["loss"]["ndcg10"]["queries_needed"]
    assert needed == (None if titles == 1 else 183)  # without those heads nothing changes in any query
    assert set(result.files.values()) == {None}
    report = " ".join([result.verdict, *(str(section.tables) for section in result.sections)])
    assert "that takes at least 183 such queries" in result.verdict
    assert drawn(result) == "search"
    assert ("If it loses nothing, about 190 queries like these would show that" in report) == (titles > 1)
    assert not any(word in report for word in ("nan", "inf "))
