"""The rules of a cascade: who goes on, and what the scores become so that sorting by them is its order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headroom.service.scoring.cascade import (
    CascadeProgress,
    Due,
    Keep,
    comparable_scores,
    count_kept,
    lowest_score,
)

GRADED = lowest_score("softmax")


def run(
    queries: list[str], keeps: list[Keep], by_stage: list[list[float]]
) -> tuple[CascadeProgress, list[list[Due]]]:
    """Send pairs through a cascade whose stage s gives pair p the score by_stage[s][p]."""
    progress = CascadeProgress(queries, keeps)
    rounds = []
    while progress.due:
        rounds.append(progress.due)
        progress.advance([np.array(by_stage[stage], np.float32)[pairs] for stage, pairs in progress.due])
    return progress, rounds


def test_of_equal_scores_the_first_in_the_request_go_on() -> None:
    _, rounds = run(["q"] * 4, [2], [[0.5] * 4, [0.5] * 4])
    assert rounds[1] == [Due(1, [0, 1])]


def test_a_share_is_of_the_stages_titles_and_rounded_up() -> None:
    assert count_kept(0.2, 10) == 2
    assert count_kept(0.2, 11) == 3
    assert count_kept(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001
    assert count_kept(0.001, 1) == count_kept(1, 1) == 1
    assert count_kept(10, 3) == 3
    _, rounds = run(["q"] * 100, [0.2, 0.5], [list(range(100))] * 3)
    assert [len(due.pairs) for (due,) in rounds] == [100, 20, 10]


def test_no_score_of_a_graded_model_falls_below_0() -> None:
    scores = np.array([0.0, 0.5, 0.25], np.float32)
    assert comparable_scores(scores, np.array([1, 0, 0]), GRADED, scores).tolist() == [0, 0, 0]


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            npst.arrays(np.float32, n, elements=st.floats(-100, 100, width=32)),
            npst.arrays(np.int64, n, elements=st.integers(0, 3)),
        )
    )
)
def test_sorting_by_score_is_the_cascades_order(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, stages = case
    found = comparable_scores(scores, stages, None, scores)
    assert (found <= scores).all(), "a score rose"
    last = stages == stages.max()
    np.testing.assert_array_equal(found[last], scores[last])
    for one in range(len(scores)):
        for other in range(len(scores)):
            ours, theirs = (stages[one], scores[one]), (stages[other], scores[other])
            if ours > theirs:
                assert found[one] > found[other]
            elif ours == theirs:
                assert found[one] == found[other]


def test_no_lowered_score_leaves_the_range_of_float32() -> None:
    lowest = np.finfo(np.float32).min
    scores = np.array([lowest, lowest, 3.0], np.float32)
    found = comparable_scores(scores, np.array([1, 0, 1]), lowest_score("identity"), scores)
    assert found.tolist() == [lowest, lowest, 3]


@given(st.integers(1, 60))
def test_a_stage_that_saves_next_to_nothing_is_not_run(titles: int) -> None:
    """A stage of a fifth of the cost that keeps 10: 1 / 5 + 10 / n of the time."""
    progress = CascadeProgress(["q"] * titles, [10], costs=[1.0, 5.0])
    saves_a_tenth = 1 / 5 + 10 / titles <= 0.9
    assert progress.due[0].stage == (0 if saves_a_tenth else 1)
    assert saves_a_tenth == (titles >= 15)


def test_stages_of_equal_cost_are_run_as_the_config_says() -> None:
    progress = CascadeProgress(["q"] * 12, [10], costs=[5.0, 5.0])
    assert progress.due == [Due(0, list(range(12)))]
