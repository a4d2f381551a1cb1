"""Equal patterns are found equal."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from models.study.similarity import NEAR
from models.study.study import QUICK
from tests.models.study.data import drawn, reported
from tests.models.study.planted import PLANTED, planted_study


def test_even_heads_are_near_each_other_and_planted_ones_stand_apart(tmp_path: Path) -> None:
    planted = replace(planted_study(tmp_path, holdout=False), effort=QUICK)
    result = reported("similarity", planted)

    found = result.json["similarity"]
    heads, distances = planted.heads, np.array(found["matrix"])
    busy = {*PLANTED.values(), (1, 0)}
    even = [index for index, head in enumerate(heads) if head not in busy]
    near = NEAR * distances[np.triu_indices(len(heads), 1)].mean()
    assert distances[np.ix_(even, even)].max() < near
    for role in ("term_match", "previous_word", "next_word", "special"):
        assert distances[heads.index(PLANTED[role]), even].min() > near
    assert found["sharing"] >= 18 / 24
    assert drawn(result) == "similarity_matrix"
