"""Equal patterns are found equal, and layers tell what they know."""

from __future__ import annotations

import dataclasses

import numpy as np
import orjson
import pytest

from models.quality.bootstrap import MIN_QUERIES, Interval, resample, with_data
from models.study.report_files import JSON
from models.study.result import Result
from models.study.similarity import report
from models.study.similarity.compute import Similarity, measure, sharing
from models.study.similarity.probes import _curve
from models.study.study import Study
from tests.models.study.data import drawn
from tests.models.study.planted import PLANTED, planted_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return planted_study(tmp_path_factory.mktemp("similarity"), holdout=False)


@pytest.fixture(scope="module")
def measured(study: Study) -> Similarity:
    return measure(study)


@pytest.fixture(scope="module")
def result(study: Study, measured: Similarity) -> Result:
    return report.result(study, measured)


def test_even_heads_are_one_cluster_and_planted_ones_stand_apart(result: Result) -> None:
    heads = [tuple(head) for head in result.json["similarity"]["heads"]]
    clusters = dict(zip(heads, result.json["similarity"]["clusters"], strict=True))
    busy = {*PLANTED.values(), (1, 0)}

    even = {clusters[head] for head in heads if head not in busy}
    assert len(even) == 1
    for role in ("term_match", "previous_word", "next_word", "special"):
        assert clusters[PLANTED[role]] not in even
    assert result.json["similarity"]["sharing"] >= 18 / 24


@pytest.mark.parametrize(
    ("share", "replicates"),
    [
        ((0.6, 0.55, 0.65), True),
        ((0.4, 0.3, 0.55), None),
        ((0.4, 0.3, 0.45), False),
        ((0.4, np.nan, np.nan), None),
    ],
)
def test_a_share_of_heads_near_one_half_leaves_the_claim_open(
    study: Study, measured: Similarity, share: tuple[float, float, float], replicates: bool | None
) -> None:
    alike = dataclasses.replace(measured.alike, sharing=Interval(*share))
    result = report.result(study, dataclasses.replace(measured, alike=alike))

    claims = {finding.claim: finding for finding in result.findings}
    assert claims["most heads share their pattern"].replicates is replicates
    assert "nan" not in claims["most heads share their pattern"].ours + result.conclusion


def shares(near: list[float], group: int, queries: int, noise: float) -> np.ndarray:
    """Return `sharing` of 20 data sets: (20, 3).

    Heads are `near` from those of their group, one number per group, and 0.5 from all others; each query adds
    noise of this standard deviation.
    """
    rng = np.random.default_rng(0)
    heads = len(near) * group
    together = np.kron(np.eye(len(near)), np.ones((group, group))) > 0
    truth = np.where(together, np.repeat(near, group), 0.5)
    found = []
    for _ in range(20):
        each = rng.normal(0, noise, (queries, heads, heads))
        by_query = truth + (each + each.transpose(0, 2, 1)) / 2**0.5
        by_query[:, np.arange(heads), np.arange(heads)] = 0
        found.append(dataclasses.astuple(sharing(by_query)))
    return np.array(found)


def test_heads_that_noise_alone_brings_near_are_not_shown_to_share() -> None:
    """Of 11 others, all too far away, noise makes one look nearer than half the mean distance of 0.24."""
    value, low, high = shares([0.27] * 12, 12, queries=10, noise=0.1).T

    assert value.mean() > 0.8  # what the data say
    assert (low < 0.02).all()
    assert (high > 0.5).all()


@pytest.mark.parametrize("groups_near", [4, 10, 16])
def test_the_interval_of_the_share_holds_the_truth_and_enough_queries_make_it_narrow(
    groups_near: int,
) -> None:
    near = [0.15] * groups_near + [0.33] * (20 - groups_near)  # half the mean distance is 0.25
    for queries in (10, 80):
        _, low, high = shares(near, 2, queries, noise=0.15).T
        assert ((low <= groups_near / 20) & (groups_near / 20 <= high)).all()

    assert (high - low).mean() < 0.1


def test_of_fewer_queries_than_intervals_need_the_share_has_none() -> None:
    found = shares([0.2] * 10, 2, MIN_QUERIES - 1, noise=0.01)

    assert (found[:, 0] == 1).all()
    assert np.isnan(found[:, 1:]).all()


def test_probes_find_in_which_layer_a_thing_becomes_known(result: Result) -> None:
    terms, grade = (np.array(result.json["probes"][name]["value"]) for name in ("term_overlap", "grade"))

    assert terms[1] > 0.95 > terms[0] + 0.1  # head 0.0 writes it
    assert grade[2:].min() > 0.9  # head 1.0 sums it up in [CLS]
    assert np.abs(grade[:2]).max() < 0.6


def test_report_is_plain_json_and_figures_can_be_drawn(result: Result) -> None:
    orjson.dumps(result.json, option=JSON)
    assert drawn(result) == ["similarity_matrix", "probes"]


def test_layers_that_tell_the_same_are_not_found_to_rise() -> None:
    """The best of 12 equal layers is chosen by chance; halves that are fixed before are not."""
    rng = np.random.default_rng(0)
    counts = with_data(resample(60, 200, 0)) / 60
    found = []
    for _ in range(300):
        word_end, grade = (_curve(counts @ rng.normal(0.5, 0.3, (60, 13)), [0.5] * 13) for _ in range(2))
        found.append(report._syntax_finding(word_end, grade).replicates)
    assert found.count(True) <= 3
    assert found.count(False) <= 30  # 5 % expected: either of two intervals of 95 %, on one side
