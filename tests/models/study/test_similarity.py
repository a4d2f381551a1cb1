"""Equal patterns are found equal."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headroom.models.study import similarity
from headroom.models.study.study import QUICK
from tests.models.study.data import drawn, reported
from tests.models.study.planted import PLANTED, planted_study


def test_even_heads_are_one_cluster_and_planted_ones_stand_apart(tmp_path: Path) -> None:
    result = reported("similarity", replace(planted_study(tmp_path, holdout=False), effort=QUICK))

    found = result.json["similarity"]
    clusters = {tuple(head): cluster for head, cluster in zip(found["heads"], found["clusters"], strict=True)}
    busy = {*PLANTED.values(), (1, 0)}
    even = {clusters[head] for head in clusters if head not in busy}
    assert len(even) == 1
    for role in ("term_match", "previous_word", "next_word", "special"):
        assert clusters[PLANTED[role]] not in even
    assert found["sharing"] >= 18 / 24
    assert drawn(result) == "similarity_matrix"


def test_twelve_queries_on_which_all_heads_are_alike_say_little_of_others(tmp_path: Path) -> None:
    """It said 100 % (100 to 100). Of 12 in 12, at least 73.5 % agree (Clopper and Pearson)."""
    alike = np.full((4, 4), 1.0)
    alike[0, 1] = alike[1, 0] = alike[2, 3] = alike[3, 2] = 0.1
    asked = replace(planted_study(tmp_path, holdout=False), effort=QUICK)
    found = similarity._sharing_interval(asked, np.tile(alike, (12, 1, 1)))
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(0.735, abs=1e-3)
