"""What is removed costs least of all that fits, and of two parts that do the same work one is kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from models.study.search.knapsack import Option, cheapest, eliminate, in_order


def test_the_choice_is_the_best_of_all_that_fit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        groups = [
            [Option(kept, float(rng.integers(1, 20)), float(rng.random())) for kept in range(4)]
            for _ in range(4)
        ]
        budget = float(rng.integers(10, 60))
        fitting = [
            choice for choice in itertools.product(*groups) if sum(o.seconds for o in choice) <= budget
        ]
        chosen = cheapest(groups, budget)
        if not fitting:
            assert chosen is None
            continue
        assert chosen is not None
        assert sum(o.seconds for o in chosen) <= budget
        # Each time is rounded up to a 4,000th of the budget, so the best choice may miss by that much.
        slack = budget * (1 - len(groups) / 4_000)
        nearly = [
            sum(o.cost for o in choice) for choice in fitting if sum(o.seconds for o in choice) <= slack
        ]
        assert sum(o.cost for o in chosen) <= min(nearly, default=np.inf)


def test_of_equal_losses_the_faster_is_chosen() -> None:
    options = [Option(2, 5.0, 0.0), Option(1, 3.0, 0.0), Option(0, 4.0, 0.0)]
    assert cheapest([options], 10.0) == [options[1]]


def test_parts_without_effect_go_first_and_of_two_equal_ones_only_one() -> None:
    rng = np.random.default_rng(1)
    shared, own = rng.standard_normal(500), rng.standard_normal(500)
    gradients = np.stack([shared, shared, np.zeros(500), 1.2 * own], 1).astype(np.float32)

    elimination = eliminate(gradients)

    assert elimination.order[0] == 2
    assert elimination.order[1] in (0, 1)
    assert elimination.order[2] == 3
    assert elimination.costs[1] == 0
    assert (np.diff(elimination.costs) >= 0).all()
    information = gradients.T @ gradients / 500
    assert elimination.costs[2] == pytest.approx(information[0, 0] / 2, rel=1e-5)


def test_magnitudes_cost_their_sum() -> None:
    elimination = in_order(np.array([3.0, 1.0, 2.0]))
    assert elimination.order.tolist() == [1, 2, 0]
    assert elimination.costs.tolist() == [0, 1, 3, 6]
