"""Guardrails: what is broken is found, and chance is not called a breach."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.definition import Guardrails
from headroom.service.experiments.guardrails import find_breach
from headroom.service.experiments.store import Store
from headroom.service.experiments.windows import MAX_SCORED_UNITS, SCORE_BINS, Counts, SlidingWindow
from tests.service.experimenting import config
from tests.service.experiments.making import live_of

ALL_OFF = Guardrails(error_rate=None)


def counts(requests: int = 1000, errors: int = 0, slow: int = 0, scores: np.ndarray | None = None) -> Counts:
    """Counts of requests of as many units, each with the same number of scores."""
    made = Counts(requests=requests, errors=errors, slow=slow)
    if scores is not None:
        of_units = (
            scores[:: len(scores) // requests] if len(scores) > requests else np.resize(scores, requests)
        )
        made.bins = dict(enumerate((of_units * SCORE_BINS).astype(int).tolist()))
    return made


Scored = Callable[[], np.ndarray]


def score(*values: float) -> Scored:
    return lambda: np.array(values, dtype=np.float32)


def window(
    units: Iterable[str], *, seconds: float = 0.05, is_error: bool = False, scores: Scored | None = None
) -> SlidingWindow:
    """A window of 60 s with a request of each unit, all at once. Over 100 ms is slow."""
    made = SlidingWindow(Guardrails(p99_ms=100, score_shift=0.1))
    for unit in units:
        made.record(0.0, seconds, unit=unit, scores=scores, is_error=is_error)
    return made


def many(name: str, number: int, of: int = 10**9) -> list[str]:
    return [f"{name}-{index % of}" for index in range(number)]


@pytest.mark.parametrize(
    ("arm", "control", "limits", "guardrail"),
    [
        (counts(errors=60), counts(), {"error_rate": 0.02}, "error_rate"),
        (counts(errors=60), counts(errors=50), {"error_rate": 0.02}, None),
        (counts(errors=20), counts(), {"error_rate": 0.02}, None),
        (counts(50, errors=50), counts(5), {"error_rate": 0.02}, "error_rate"),
        # Control has too few requests to compare with.
        (counts(10_000, errors=10_000), counts(3), {"error_rate": 0.02}, "error_rate"),
        (counts(10_000, errors=10_000), counts(0), {"error_rate": 0.02}, "error_rate"),
        (counts(10_000, errors=10_000), counts(3, errors=1), {"error_rate": 0.02}, "error_rate"),
        (counts(10_000, errors=10_000), counts(8, errors=4), {"error_rate": 0.02}, "error_rate"),
        (counts(10_000, errors=10_000), counts(3, errors=3), {"error_rate": 0.02}, None),
        (counts(errors=400), counts(3), {"error_rate": 0.02}, None),
        (counts(slow=10), counts(), {"p99_ms": 100}, None),
        (counts(slow=40), counts(), {"p99_ms": 100}, "p99"),
        # Overload slows control, too. An arm is judged by what it adds.
        (counts(slow=1000), counts(slow=1000), {"p99_ms": 100}, None),
        (counts(slow=320), counts(slow=300), {"p99_ms": 100}, None),
        (counts(slow=500), counts(slow=300), {"p99_ms": 100}, "p99"),
        (counts(slow=1000), counts(0), {"p99_ms": 100}, None),
        # Nothing is said from too few requests.
        (counts(49, errors=49, slow=49), counts(), {"error_rate": 0.02, "p99_ms": 1}, None),
        (counts(50, errors=50), counts(), {"error_rate": 0.02, "p99_ms": 1}, "error_rate"),
        (counts(errors=1000, slow=1000), counts(), {}, None),
    ],
)
def test_an_arm_breaks_what_it_exceeds_by_more_than_chance(
    arm: Counts, control: Counts, limits: dict[str, float], guardrail: str | None
) -> None:
    found = find_breach(arm, control, ALL_OFF.model_copy(update=limits))
    assert (found and found[0]) == guardrail


@pytest.mark.parametrize("kind", ["is_error", "slow", "score_shift"])
def test_one_unit_takes_no_arm_back(kind: str) -> None:
    """One caller may set deadlines that nobody can meet; the same from many callers is the arm's doing."""
    limits = Guardrails(error_rate=0.02 if kind == "is_error" else None, p99_ms=100, score_shift=0.25)
    usual, shifted = score(*[0.5] * 10), score(*[0.01] * 10)
    control = counts(scores=np.full(1000, 0.5))

    def breach(failing: list[str], healthy: int) -> tuple[str, str] | None:
        arm = window(many("user", healthy), scores=usual)
        for unit in failing:
            seconds = 0.2 if kind == "slow" else 0.05
            scores = shifted if kind == "score_shift" else usual
            arm.record(0.0, seconds, unit=unit, scores=scores, is_error=kind == "is_error")
        return find_breach(arm.total(0.0), control, limits)

    assert breach(["crawler"] * 1000, healthy=100) is None
    assert breach(["crawler"] * 1000 + ["other"], healthy=1000) is None
    if kind != "score_shift":  # three units say nothing about the scores of all
        assert breach(many("caller", 300, of=3), healthy=100) is not None
    assert breach(many("caller", 300), healthy=100) is not None


def test_an_interleaved_request_takes_both_arms_the_same_time_so_the_limit_counts_alone() -> None:
    limits = Guardrails(error_rate=None, p99_ms=100)
    slow = counts(slow=40)
    assert find_breach(slow, slow, limits) is None
    found = find_breach(slow, slow, limits, is_interleaved=True)
    assert found is not None
    assert found[1] == (
        "40 of 1000 requests took longer than 100 ms; the limit is 0.01, without a comparison with control, "
        "because both arms are scored together"
    )


def test_one_control_unit_hides_no_failing_arm() -> None:
    """A caller that fails in control made control's share so high that no arm could exceed it."""
    control, pruned = window(many("user", 100)), window(many("other", 500))
    for number in range(1000):
        control.record(0.0, 0.05, unit="crawler", is_error=True)
        if number < 500:
            pruned.record(0.0, 0.05, unit=f"failing-{number}", is_error=True)
    found = find_breach(pruned.total(0.0), control.total(0.0), Guardrails())
    assert found is not None
    assert found[1] == "500 of 1000 requests failed; the limit is 0.02 over the control's 0"


def test_units_that_come_often_do_not_shift_the_scores_by_chance() -> None:
    """Alike arms of 50 units with 20 requests each, and each unit has its own score: 60 windows."""
    random = np.random.default_rng(0)

    def arm() -> Counts:
        made = window([])
        for unit, of_unit in enumerate(random.random(50)):
            for _ in range(20):
                made.record(0.0, 0.01, unit=f"user-{unit}", scores=score(*[of_unit] * 5))
        return made.total(0.0)

    assert not any(find_breach(arm(), arm(), Guardrails(score_shift=0.25)) for _ in range(60))


def test_chance_alone_takes_no_arm_back() -> None:
    """2,000 windows of an arm that is exactly at its limits, and scored as control is, request by request.

    And 2,000 in which both arms fail alike and are alike slow, while control has few requests or none.
    """
    random = np.random.default_rng(11)
    limits = Guardrails(error_rate=0.02, p99_ms=100, score_shift=0.01)
    alarms = of_few = 0
    for _ in range(2000):
        requests = int(random.integers(50, 2000))
        # Ten titles of a request score alike: no more independent than one.
        scores = [np.repeat(random.beta(2, 5, requests), 10) for _ in range(2)]
        failed, slow = (int(random.binomial(requests, share)) for share in (0.02, 0.01))
        arm = counts(requests, failed, slow, scores[0])
        alarms += find_breach(arm, counts(requests, scores=scores[1]), limits) is not None
        rate, few = random.uniform(0, 0.4), int(random.integers(0, 100))
        arm, control = (
            counts(number, int(random.binomial(number, rate)), int(random.binomial(number, 2 * rate)))
            for number in (1000, few)
        )
        of_few += find_breach(arm, control, Guardrails(error_rate=0.02, p99_ms=100)) is not None
    assert alarms <= 5
    assert of_few == 0


def test_the_window_forgets_what_is_older() -> None:
    made = window([])
    for second in range(100):
        made.record(float(second), 0.2 if second < 50 else 0.05, is_error=second < 10)
    total = made.total(99.0)
    assert total.requests == pytest.approx(60, abs=2)
    assert total.errors == 0
    assert total.slow == pytest.approx(10, abs=2)
    assert made.total(1000.0).requests == 0


def test_a_slot_remembers_so_many_units_and_no_more() -> None:
    made = window([])
    for second in (0.0, 30.0):
        for unit in many(str(second), MAX_SCORED_UNITS + 100):
            made.record(second, 0.1, unit=unit, scores=score(0.5))
    assert made.total(30.0).scores.sum() == 2 * MAX_SCORED_UNITS


def test_the_score_of_a_unit_is_that_of_any_of_its_titles() -> None:
    """That of the first one, always, would be the best of a list in the callers' order."""
    counted = window(many("user", 200), scores=score(0.105, 0.905)).total(0.0)
    assert counted.scores[[10, 90]].min() > 50


def test_a_request_of_a_thousand_titles_weighs_as_much_as_one_of_one() -> None:
    """200 alike requests in both arms; in one of them a caller also sent a thousand irrelevant titles."""
    random = np.random.default_rng(5)
    control, pruned = window([]), window([])
    for arm in (control, pruned):
        for number, value in enumerate(random.beta(2, 5, 200)):
            arm.record(0.0, 0.1, unit=f"user-{number}", scores=score(value))
    pruned.record(0.0, 0.1, unit="shop", scores=score(*[0.01] * 1000))
    limits = Guardrails(error_rate=None, score_shift=0.25)
    assert find_breach(pruned.total(0.0), control.total(0.0), limits) is None


async def test_an_edit_empties_no_window_unless_it_changes_what_is_counted(tmp_path: Path) -> None:
    live = live_of(Store(f"sqlite:///{tmp_path / 'experiments.db'}"))
    scored = np.array([0.5], dtype=np.float32)
    others = {"name": "other", "salt": "other", "slots": [5000, 10000]}
    more = [{"name": "full"}, {"name": "half", "head_mask": "1.*"}, {"name": "cut", "head_mask": "0.*"}]

    def counted(version: str, variants: list[dict[str, Any]] | None = None, **experiment: Any) -> Counts:
        """Apply a config, and return what is counted of `pruned` after one more request over 200 ms."""
        edited = config(variants, slots=[0, 5000], **experiment)
        if version == "another experiment":
            edited["experiments"].append(edited["experiments"][0] | others)
        live.apply(LiveConfig.model_validate(edited).experiments, version, definitions=definitions)
        window = live.windows.of("prune20", "pruned")
        assert window is not None
        window.record(live.ledger.monotonic(), 0.2, scores=lambda: scored)
        return window.total(live.ledger.monotonic())

    definitions: dict[str, str] = {}
    limits: dict[str, Any] = {"p99_ms": 100.0}
    assert counted("first", guardrails=limits).slow == 1
    assert counted("more traffic", traffic=0.5, guardrails=limits).slow == 2
    assert counted("another variant", more, guardrails=limits).slow == 3
    assert (
        counted("another experiment", guardrails=limits | {"min_requests": 99, "error_rate": 0.1}).slow == 4
    )
    found = counted("another limit", guardrails={"p99_ms": 300.0})
    assert (found.requests, found.slow, found.scores.sum()) == (1, 0, 0)
    definitions = {"full": "a", "cut": "b"}
    assert counted("known", guardrails={"p99_ms": 300.0}).requests == 1
    definitions = {"full": "a", "cut": "c"}  # the arm's variant is repaired
    assert counted("repaired", guardrails={"p99_ms": 300.0}).requests == 1
    definitions = {"full": "d", "cut": "c"}
    assert counted("not control's", guardrails={"p99_ms": 300.0}).requests == 2
    assert live.windows.of("removed", "pruned") is None
    await live.close(1)
