"""The draw of one list from two rankings: to the byte as specified, fair, and safe for clients that sort."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.service.experiments.interleaving import (
    coins,
    draw,
    falling,
    impression_id,
    own_order,
)

CASES = json.loads((Path(__file__).parents[2] / "cases" / "interleaving.json").read_text())

SCORES = st.floats(-(2.0**100), 2.0**100, width=32)


@st.composite
def two_rankings(draw_from: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two rankings of up to 30 titles, often alike in places."""
    titles = list(range(draw_from(st.integers(1, 30))))
    control = draw_from(st.permutations(titles))
    treatment = list(control)
    if draw_from(st.booleans()):
        treatment = draw_from(st.permutations(titles))
    elif len(titles) > 1:
        for index in draw_from(st.lists(st.integers(0, len(titles) - 2), max_size=4)):
            treatment[index : index + 2] = reversed(treatment[index : index + 2])
    return control, treatment


def as_the_contract_says(control: list[int], treatment: list[int], coins: list[int]) -> tuple[list[int], str]:
    """The contract's paragraph once more, word by word and slowly."""
    order: list[int] = []
    teams = ""
    rounds = 0
    while len(order) < len(control):
        next_of_control = next(title for title in control if title not in order)
        next_of_treatment = next(title for title in treatment if title not in order)
        if next_of_control == next_of_treatment:
            order += [next_of_control]
            teams += "s"
        elif coins[rounds] == 0:
            order += [next_of_control, next_of_treatment]
            teams += "ct"
            rounds += 1
        else:
            order += [next_of_treatment, next_of_control]
            teams += "tc"
            rounds += 1
    return order, teams


@pytest.mark.parametrize("case", CASES["draws"], ids=lambda case: case["name"])
def test_the_table_of_draws_comes_out_to_the_byte(case: dict[str, Any]) -> None:
    """The table was made by another program than ours, its hashes by sha256sum."""
    texts = [case["salt"], case["unit"], case["query"]]
    for round_index, (first_byte, said) in enumerate(zip(case["first_bytes"], case["coins"], strict=True)):
        digest = sha256(":".join([*texts, str(round_index)]).encode("utf-8")).hexdigest()
        assert digest[:2] == first_byte
        assert int(first_byte, 16) % 2 == said
        assert coins(*texts)(round_index) == said
    flipped: list[int] = []

    def flip(round_index: int) -> int:
        flipped.append(round_index)
        return coins(*texts)(round_index)

    drawn = draw(case["control"], case["treatment"], flip)
    assert list(drawn.order) == case["order"]
    assert drawn.teams == case["teams"]
    assert flipped == list(range(len(case["coins"])))
    assert as_the_contract_says(case["control"], case["treatment"], case["coins"]) == (
        case["order"],
        case["teams"],
    )


@pytest.mark.parametrize("case", CASES["own_orders"], ids=lambda case: str(case["raw_scores"]))
def test_an_arms_own_order_is_by_raw_score_and_then_by_index(case: dict[str, Any]) -> None:
    assert own_order(case["raw_scores"]) == case["order"]


@given(two_rankings(), st.lists(st.integers(0, 1), min_size=15, max_size=15))
def test_a_draw_is_what_the_contract_says(rankings: tuple[list[int], list[int]], coins: list[int]) -> None:
    control, treatment = rankings
    drawn = draw(control, treatment, coins.__getitem__)
    assert (list(drawn.order), drawn.teams) == as_the_contract_says(control, treatment, coins)


def test_the_coin_is_fair_and_independent_from_round_to_round() -> None:
    flips = [coins("2026-12", f"user-{unit}", "desk lamp") for unit in range(5000)]
    found = np.array([[flip(number) for number in range(4)] for flip in flips])
    assert np.abs(found.mean(0) - 0.5).max() < 4 * 0.5 / np.sqrt(5000)
    correlations = np.corrcoef(found.T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(5000)


@given(st.lists(SCORES, min_size=1, max_size=40))
def test_a_client_that_sorts_by_score_shows_the_order(scores: list[float]) -> None:
    """Also a client that keeps scores as float32 or reads them from JSON."""
    lowered = falling(scores)
    assert (np.diff(np.array(lowered, np.float64)) < 0).all()
    assert (np.diff(np.array(lowered, np.float32)) < 0).all()
    assert (np.diff([float(str(score)) for score in lowered]) < 0).all()
    assert all(np.float32(new) <= np.float32(old) for old, new in zip(scores, lowered, strict=True))


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40))
def test_scores_are_lowered_no_further_than_to_the_next_float32(scores: list[float]) -> None:
    lowered = falling(scores)
    for index in range(1, len(scores)):
        below = np.nextafter(np.float32(lowered[index - 1]), np.float32(-np.inf))
        assert np.float32(lowered[index]) == min(np.float32(scores[index]), below)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40))
def test_scores_above_a_floor_fall_without_leaving_it(scores: list[float]) -> None:
    lowered = np.array(falling(scores, floor=0.0))
    assert (lowered >= 0).all()
    assert (np.diff(lowered) < 0).all()


def test_numbers_that_differ_only_in_float64_fall_as_float32_too() -> None:
    first, second, third = falling([0.3000000001, 0.3, 0.1])
    assert first == 0.3000000001
    assert np.float32(second) < np.float32(first)
    assert third == 0.1


def test_a_request_that_is_sent_again_shows_the_list_of_the_same_id() -> None:
    sent = impression_id("order", "user-1", "q-1")
    assert len(sent) == 32
    assert sent == impression_id("order", "user-1", "q-1")
    others = {impression_id(*key) for key in (("order", "user-2", "q-1"), ("order", "user-1", "q-2"))}
    assert len(others | {sent, impression_id("other", "user-1", "q-1")}) == 4
    assert impression_id("order", "user-1") != impression_id("order", "user-1")
