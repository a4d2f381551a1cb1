"""Equal patterns are found equal."""

from dataclasses import replace
from pathlib import Path

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
