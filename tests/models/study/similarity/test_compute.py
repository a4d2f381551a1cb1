"""Equal patterns are found equal, and layers tell what they know."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from models.study import kinds
from models.study.report_files import JSON
from models.study.result import Result
from tests.models.study.data import drawn
from tests.models.study.planted import PLANTED, planted_study


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return kinds.run("similarity", planted_study(tmp_path_factory.mktemp("similarity"), holdout=False))


def test_even_heads_are_one_cluster_and_planted_ones_stand_apart(result: Result) -> None:
    heads = [tuple(head) for head in result.json["similarity"]["heads"]]
    clusters = dict(zip(heads, result.json["similarity"]["clusters"], strict=True))
    busy = {*PLANTED.values(), (1, 0)}

    even = {clusters[head] for head in heads if head not in busy}
    assert len(even) == 1
    for role in ("term_match", "previous_word", "next_word", "special"):
        assert clusters[PLANTED[role]] not in even
    assert result.json["similarity"]["sharing"] >= 18 / 24


def test_probes_find_in_which_layer_a_thing_becomes_known(result: Result) -> None:
    terms, grade = (
        np.array([one.value for one in result.json["probes"][name].values])
        for name in ("term_overlap", "grade")
    )

    assert terms[1] > 0.95 > terms[0] + 0.1  # head 0.0 writes it
    assert grade[2:].min() > 0.9  # head 1.0 sums it up in [CLS]
    assert np.abs(grade[:2]).max() < 0.6


def test_report_is_plain_json_and_figures_can_be_drawn(result: Result) -> None:
    orjson.dumps(result.json, option=JSON)
    assert drawn(result) == ["similarity_matrix", "probes"]
