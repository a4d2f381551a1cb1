"""Guardrails: what is broken is found, and chance is not called a breach."""

from __future__ import annotations

import numpy as np
import pytest

from service.experiments.definition import Guardrails
from service.experiments.guardrails import Breach, exceeds, find_breach, population_stability
from service.experiments.windows import LATENCY_BOUNDS, MAX_SCORED_UNITS, SCORE_BINS, Counts, Window

NOTHING = Guardrails(error_rate=None, srm=None)


def counts(requests: int = 1000, errors: int = 0, slow: int = 0, scores: np.ndarray | None = None) -> Counts:
    """Counts of requests of as many units, each with the same number of scores."""
    made = Counts(requests=requests, errors=errors, slow=slow)
    if scores is not None:
        made.scores += np.histogram(scores, SCORE_BINS, (0, 1))[0] * requests / len(scores)
    return made


def test_an_arm_that_fails_is_found_and_one_that_fails_as_control_does_is_not() -> None:
    limits = Guardrails(error_rate=0.02)
    found = find_breach("pruned", counts(errors=60), counts(), limits)
    assert found == Breach(
        "pruned", "error_rate", "60 of 1000 requests failed; the limit is 0.02 over the control's 0"
    )
    assert find_breach("pruned", counts(errors=60), counts(errors=50), limits) is None
    assert find_breach("pruned", counts(errors=20), counts(), limits) is None


def test_a_slow_arm_is_found() -> None:
    limits = Guardrails(error_rate=None, p99_ms=100)
    assert find_breach("pruned", counts(slow=10), counts(), limits) is None
    found = find_breach("pruned", counts(slow=40), counts(), limits)
    assert found is not None
    assert found.guardrail == "p99"


def test_nothing_is_said_from_too_few_requests() -> None:
    limits = Guardrails(error_rate=0.02, p99_ms=1, score_shift=0.1, min_requests=50)
    assert find_breach("pruned", counts(49, errors=49, slow=49), counts(), limits) is None
    assert find_breach("pruned", counts(50, errors=50), counts(), limits) is not None


def test_other_scores_are_found_and_alike_ones_are_not() -> None:
    random = np.random.default_rng(7)
    limits = Guardrails(error_rate=None, score_shift=0.1)
    control = counts(scores=random.beta(2, 5, 20_000))
    assert find_breach("pruned", counts(scores=random.beta(2, 5, 20_000)), control, limits) is None
    found = find_breach("pruned", counts(scores=random.beta(2.8, 5, 20_000)), control, limits)
    assert found is not None
    assert found.guardrail == "score_shift"


@pytest.mark.parametrize("kind", ["is_error", "slow", "score_shift"])
def test_one_unit_takes_no_arm_back(kind: str) -> None:
    """One caller may set deadlines that nobody can meet; the same from many callers is the arm's doing."""
    limits = Guardrails(error_rate=0.02 if kind == "is_error" else None, p99_ms=100, score_shift=0.25)
    usual, shifted = (np.full(10, score, dtype=np.float32) for score in (0.5, 0.01))
    control = counts(scores=usual)

    def breach(failing: list[str], healthy: int) -> Breach | None:
        window = Window(60, slow_s=0.1)
        for number in range(healthy):
            window.record(0.0, 0.05, unit=f"user-{number}", scores=usual)
        for unit in failing:
            seconds = 0.2 if kind == "slow" else 0.05
            scores = shifted if kind == "score_shift" else usual
            window.record(0.0, seconds, unit=unit, scores=scores, is_error=kind == "is_error")
        return find_breach("pruned", window.total(0.0), control, limits)

    assert breach(["crawler"] * 1000, healthy=100) is None
    assert breach(["crawler"] * 1000 + ["other"], healthy=1000) is None
    if kind != "score_shift":  # three units say nothing about the scores of all
        assert breach([f"caller-{number % 3}" for number in range(300)], healthy=100) is not None
    assert breach([f"caller-{number}" for number in range(300)], healthy=100) is not None


def test_a_breach_says_if_it_rests_on_few_units() -> None:
    window, control = Window(60, slow_s=0.1), Window(60, slow_s=0.1)
    for number in range(300):
        window.record(0.0, 0.2, unit=f"caller-{number % 3}", is_error=True)
        control.record(0.0, 0.05, unit=f"user-{number}")
    failed, slow = (
        find_breach("pruned", window.total(0.0), control.total(0.0), limits)
        for limits in (Guardrails(), Guardrails(error_rate=None, p99_ms=100))
    )
    assert failed is not None
    assert failed.detail.startswith("300 of 300 requests failed (those of 3 units); the limit is 0.02 over")
    assert slow is not None
    assert slow.detail.startswith("300 of 300 requests took longer than 100 ms (those of 3 units); the limit")


def test_one_control_unit_hides_no_failing_arm() -> None:
    """A caller that fails in control made control's share so high that no arm could exceed it."""
    control, pruned = Window(60, slow_s=None), Window(60, slow_s=None)
    for number in range(100):
        control.record(0.0, 0.05, unit=f"user-{number}")
    for _ in range(1000):
        control.record(0.0, 0.05, unit="crawler", is_error=True)
    for number in range(1000):
        pruned.record(0.0, 0.05, unit=f"other-{number}", is_error=number < 500)
    found = find_breach("pruned", pruned.total(0.0), control.total(0.0), Guardrails())
    assert found is not None
    assert found.detail == "500 of 1000 requests failed; the limit is 0.02 over the control's 0"


def test_units_that_come_often_do_not_shift_the_scores_by_chance() -> None:
    """Alike arms of 50 units with 20 requests each, and each unit has its own score: 60 windows."""
    random = np.random.default_rng(0)
    limits = Guardrails(score_shift=0.25)

    def window() -> Counts:
        made = Window(60, slow_s=None)
        for unit, score in enumerate(random.random(50)):
            scores = np.full(5, score, dtype=np.float32)
            for _ in range(20):
                made.record(0.0, 0.01, unit=f"user-{unit}", scores=scores)
        return made.total(0.0)

    assert not any(find_breach("pruned", window(), window(), limits) for _ in range(60))


def test_too_few_units_say_nothing_about_scores() -> None:
    control, pruned = Window(60, slow_s=None), Window(60, slow_s=None)
    for number in range(2000):
        control.record(0.0, 0.1, unit=f"c{number}", scores=np.array([0.9], dtype=np.float32))
        pruned.record(0.0, 0.1, unit=f"p{number % 49}", scores=np.array([0.1], dtype=np.float32))
    limits = Guardrails(score_shift=0.01, min_requests=50)
    assert find_breach("pruned", pruned.total(0.0), control.total(0.0), limits) is None
    assert find_breach("pruned", control.total(0.0), pruned.total(0.0), limits) is None


def test_control_with_few_requests_says_little() -> None:
    """Both arms fail alike, while control has few requests or none: 2,000 windows."""
    random = np.random.default_rng(17)
    limits = Guardrails(error_rate=0.02)
    alarms = 0
    for _ in range(2000):
        rate, controls = random.uniform(0, 0.4), int(random.integers(0, 100))
        control = counts(controls, int(random.binomial(controls, rate)))
        arm = counts(1000, int(random.binomial(1000, rate)))
        alarms += find_breach("pruned", arm, control, limits) is not None
    assert alarms == 0
    assert find_breach("pruned", counts(50, errors=50), counts(5), limits) is not None


def test_chance_alone_takes_no_arm_back() -> None:
    """2,000 windows of an arm that is exactly at its limits, and scored as control is, request by request."""
    random = np.random.default_rng(11)
    limits = Guardrails(error_rate=0.02, p99_ms=100, score_shift=0.01)
    alarms = 0
    for _ in range(2000):
        requests = int(random.integers(50, 2000))
        # Ten titles of a request score alike: no more independent than one.
        scores = [np.repeat(random.beta(2, 5, requests), 10) for _ in range(2)]
        arm = counts(
            requests, int(random.binomial(requests, 0.02)), int(random.binomial(requests, 0.01)), scores[0]
        )
        alarms += find_breach("pruned", arm, counts(requests, scores=scores[1]), limits) is not None
    assert alarms <= 5


def test_a_share_over_any_limit_is_no_breach_where_the_limit_is_everything() -> None:
    assert not exceeds(10, 10, 1.0)
    assert not exceeds(0, 0, 0.5)
    assert exceeds(10, 10, 0.1)


def test_scores_that_are_all_the_same_are_compared_too() -> None:
    same = counts(scores=np.full(1000, 0.25)).scores
    other = counts(scores=np.full(1000, 0.75)).scores
    assert population_stability(same, same) == pytest.approx(0)
    assert population_stability(other, same) > 1
    assert population_stability(same, np.zeros(SCORE_BINS, dtype=np.int64)) == 0


def test_the_window_forgets_what_is_older() -> None:
    window = Window(60, slow_s=0.1)
    for second in range(100):
        window.record(float(second), 0.2 if second < 50 else 0.05, is_error=second < 10)
    total = window.total(99.0)
    assert total.requests == pytest.approx(60, abs=2)
    assert total.errors == 0
    assert total.slow == pytest.approx(10, abs=2)
    assert window.total(1000.0).requests == 0


def test_a_unit_counts_once_in_the_scores_of_a_window() -> None:
    window = Window(60, slow_s=None)
    for second in range(200):
        score = 0.25 if second < 10 else 0.75
        window.record(float(second), 0.1, unit="often", scores=np.array([score], dtype=np.float32))
        if second == 5:
            window.record(5.0, 0.1, unit="once", scores=np.array([score], dtype=np.float32))
        scores = window.total(float(second)).scores
        assert scores.sum() == (2 if 5 <= second < 64 else 1)
    assert scores[75] == 1  # the first of this window's


def test_a_slot_remembers_so_many_units_and_no_more() -> None:
    window = Window(60, slow_s=None)
    scores = np.array([0.5], dtype=np.float32)
    for second in (0.0, 30.0):
        for number in range(MAX_SCORED_UNITS + 100):
            window.record(second, 0.1, unit=f"{second}-{number}", scores=scores)
    assert window.total(30.0).scores.sum() == 2 * MAX_SCORED_UNITS


def test_the_window_knows_the_99th_percentile_to_a_tenth() -> None:
    window = Window(60, slow_s=None)
    latencies = np.random.default_rng(3).lognormal(-3, 0.7, 5000)
    for latency in latencies:
        window.record(0.0, float(latency))
    assert window.total(0.0).p99_seconds == pytest.approx(float(np.quantile(latencies, 0.99)), rel=0.1)
    assert Counts().p99_seconds is None
    window.record(0.0, 1e9)
    assert window.total(0.0).latencies.sum() == 5001
    assert LATENCY_BOUNDS[-1] > 55


def test_scores_at_the_ends_of_the_range_have_a_bin() -> None:
    window = Window(60, slow_s=None)
    window.record(0.0, 0.1, scores=np.array([0.0, 1.0, 0.5], dtype=np.float32))
    window.record(0.0, 0.1, scores=np.array([], dtype=np.float32))
    scores = window.total(0.0).scores
    assert scores[[0, 50, -1]] == pytest.approx([1 / 3] * 3)
    assert scores.sum() == pytest.approx(1)


def test_a_request_of_a_thousand_titles_weighs_as_much_as_one_of_one() -> None:
    """200 alike requests in both arms; in one of them a caller also sent a thousand irrelevant titles."""
    random = np.random.default_rng(5)
    control, pruned = Window(60, slow_s=None), Window(60, slow_s=None)
    for window in (control, pruned):
        for number, score in enumerate(random.beta(2, 5, 200)):
            window.record(0.0, 0.1, unit=f"user-{number}", scores=np.array([score], dtype=np.float32))
    pruned.record(0.0, 0.1, unit="shop", scores=np.full(1000, 0.01, dtype=np.float32))
    limits = Guardrails(error_rate=None, score_shift=0.25)
    assert find_breach("pruned", pruned.total(0.0), control.total(0.0), limits) is None


def test_limits_that_are_off_find_nothing() -> None:
    assert find_breach("pruned", counts(errors=1000, slow=1000), counts(), NOTHING) is None
