"""The checks of a model: one that fails them must be seen to fail."""

import numpy as np
import pytest

from default_model.checks import (
    FIRST,
    quadruple_answers,
    ranking_answers,
    read_quadruples,
)
from default_model.mixture import Judged

pytestmark = pytest.mark.more


def test_quadruples_are_counted_by_what_comes_first_and_last() -> None:
    rows = [row for name in FIRST for row in read_quadruples(name)]
    right = {title: 4.0 - at for row in rows for at, title in enumerate(list(row.values())[-4:])}
    answers = quadruple_answers(lambda pairs: np.array([right[title] for _, title in pairs]))
    assert len(answers) == 8
    assert sum(answer.holds for answer in answers) == 8
    level = quadruple_answers(lambda pairs: np.ones(len(pairs)))
    assert not any(answer.holds for answer in level)  # a tie is no first place
    assert all("FAILS" in str(answer) for answer in level)


def test_a_model_that_ranks_at_random_is_not_better_than_words() -> None:
    rng = np.random.default_rng(0)
    judged = [
        Judged(
            f"red lamp {q}", " ".join(["red", "lamp", str(q)][:grade]) + " thing", grade, "esci_us_150q", 2
        )
        for q in range(20)
        for grade in range(4)
    ]
    random_order = ranking_answers(rng.dirichlet(np.ones(5), len(judged)), judged, resamples=200)
    assert not any(answer.holds for answer in random_order)
