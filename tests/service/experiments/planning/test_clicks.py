"""Simulated users: the sampled clicks have the means that the model says."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from service.experiments.planning.clicks import DEPTH, EMPTY, ClickMeasure, ClickModel, Rankings, Visits, rank


def user(rankings: Rankings, query: int, measure: ClickMeasure, rng: np.random.Generator) -> float:
    """One user, step by step."""
    clicks = []
    for place in range(DEPTH):
        if rng.random() < rankings.seen[query, place] and rng.random() < rankings.click[query, place]:
            clicks.append(place)
            if rng.random() >= rankings.go_on[query, place]:
                break
    if measure == "clicks":
        return float(len(clicks))
    return 0.0 if not clicks else 1.0 if measure == "clicked" else 1 / (clicks[0] + 1)


@pytest.mark.parametrize("model", get_args(ClickModel))
@pytest.mark.parametrize("measure", get_args(ClickMeasure))
def test_users_do_what_the_model_says_step_by_step(model: ClickModel, measure: ClickMeasure) -> None:
    rng = np.random.default_rng(1)
    grades = rng.integers(0, 3, (3, DEPTH))
    grades[2, 3:] = EMPTY
    rankings = Rankings.of(grades, levels=5, model=model)
    values, probabilities = rankings.distribution(measure)
    assert probabilities.sum(1) == pytest.approx(1.0)
    for query in range(3):
        walked = np.array([user(rankings, query, measure, rng) for _ in range(3000)])
        drawn = Visits(values, probabilities).draw(np.full(30_000, query), rng)
        mean, spread = probabilities[query] @ values, np.sqrt(probabilities[query] @ values**2)
        assert abs(walked.mean() - mean) < 4.5 * spread / np.sqrt(3000)
        assert abs(drawn.mean() - mean) < 4.5 * spread / np.sqrt(30_000)
        assert set(drawn) <= set(values)


def test_a_better_ranking_gets_more_and_earlier_clicks() -> None:
    good = np.array([[4, 3, 2, 1, 0, 0, 0, 0, 0, 0]])
    for model, measure in (("position", "clicks"), ("position", "clicked"), ("cascade", "reciprocal_rank")):
        tables = [Rankings.of(g, levels=5, model=model).distribution(measure) for g in (good, good[:, ::-1])]
        best, worst = (float(probabilities[0] @ values) for values, probabilities in tables)
        assert best > worst


def test_titles_are_ranked_by_score_and_cut_at_ten() -> None:
    query_of = np.array([0] * 12 + [1] * 2)
    grades = np.array([*range(12), 7, 8])
    scores = np.array([*np.arange(12.0), 0.5, 0.5])
    found = rank(query_of, grades, scores)
    assert found[0].tolist() == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert found[1].tolist() == [7, 8, *[EMPTY] * 8]  # equal scores keep the order of the data


def test_other_numbers_of_grades_are_stretched() -> None:
    two = Rankings.of(np.array([[1, 0]]), levels=2, model="cascade")
    five = Rankings.of(np.array([[4, 0]]), levels=5, model="cascade")
    assert np.array_equal(two.click, five.click)
