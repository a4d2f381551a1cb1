"""What is measured of lists drawn from two rankings, beside sums over all that may happen."""

from itertools import product

import numpy as np
import pytest

from headroom.service.experiments.drawn_lists import Lists, measure_lists, simulate_clicks
from headroom.service.experiments.interleaving import draw


def test_lists_are_measured_with_clicks_that_fall_off_by_rank() -> None:
    falling = np.arange(10.0)[::-1]
    swapped = falling.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    seen = 1 / np.arange(1, 11)
    lists = measure_lists([(falling, falling), (falling, swapped)])
    assert lists.differing == 0.5
    assert lists.deciding == pytest.approx(0.5 * 1.5 / seen.sum())  # the first two titles of one list
    last = falling.copy()
    last[[8, 9]] = last[[9, 8]]
    assert measure_lists([(falling, last)]).differing == 1.0
    assert measure_lists([(falling, last)], shown=8) == Lists(0.0, 0.0)
    with pytest.raises(ValueError, match="no query"):
        measure_lists([])


def test_what_simulated_users_prefer_is_what_all_their_clicks_weigh() -> None:
    """Of one query of four titles: every coin and every set of clicks, by its probability."""
    order = np.array([0.0, -1.0, -2.0, -3.0])
    model = np.array([1.0, 4.0, 3.0, 2.0])
    grades = np.array([1.0, 0.0, 2.0, 1.0])
    satisfying = (2**grades - 1) / 4
    clicking = deciding = value = 0.0
    for coins in product((0, 1), repeat=4):
        drawn = draw([0, 1, 2, 3], [1, 2, 3, 0], lambda number, coins=coins: coins[number])
        chances = [satisfying[title] / rank for rank, title in enumerate(drawn.order, 1)]
        for clicks in product((0, 1), repeat=4):
            chance = np.prod([p if click else 1 - p for p, click in zip(chances, clicks, strict=True)]) / 16
            teams = [team for team, click in zip(drawn.teams, clicks, strict=True) if click and team != "s"]
            clicking += chance * any(clicks)
            deciding += chance * bool(teams)
            value += chance * (2 * teams.count("t") / len(teams) - 1 if teams else 0.0)
    queries = 400
    found = simulate_clicks([(order, model)] * queries, [grades] * queries)
    assert found.lists.differing == 1
    assert found.lists.deciding == pytest.approx(deciding / clicking, abs=0.005)
    assert found.value.sum() / found.deciding.sum() == pytest.approx(value / deciding, abs=0.02)
    with pytest.raises(ValueError, match="no title has a grade above 0"):
        _ = simulate_clicks([(order, model)], [np.zeros(4)]).lists
