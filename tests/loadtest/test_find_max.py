"""The search for the highest rate, on servers whose highest rate is known: formulas instead of traffic."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from loadtest import find_max, objective
from loadtest.errors import LoadTestError
from loadtest.plan import Plan, make_plan
from loadtest.recorder import Group, Recorder, Window
from loadtest.running import Outcome

PLAN = make_plan({"url": "http://127.0.0.1:1", "duration": 10, "warmup": 0, "rate": 50})


@pytest.fixture(autouse=True)
def _nothing_to_settle(monkeypatch):
    monkeypatch.setattr(find_max, "SETTLE_S", 0.0)


def outcome(
    plan: Plan, latencies: np.ndarray, *, errors: int = 0, lag: float = 0.0, interrupted=False
) -> Outcome:
    recorder = Recorder(0)
    group = recorder.groups.setdefault(("all", "score", "", "none", ""), Group())
    for value in latencies:
        group.latency.record(float(value))
        recorder.send_lag.record(lag)
    recorder.ok = recorder.sent = recorder.scheduled = len(latencies)
    recorder.scheduled += errors
    recorder.titles_scheduled, recorder.titles_failed = recorder.scheduled, errors
    recorder.sent += errors
    if errors:
        recorder.errors["http_429"] = errors
    answered = (len(latencies) + errors) // 10
    recorder.windows = [Window(answered=answered) for _ in range(10)]
    return Outcome(plan, recorder, datetime.now(UTC), plan.duration, 0.1, interrupted)


class Queue:
    """A server of one worker and 10 ms a request: latencies are exponential with mean 10 ms / (1 - load)."""

    def __init__(self, capacity: float = 100.0, client_limit: float = 1e9) -> None:
        self.capacity, self.client_limit = capacity, client_limit
        self.rates: list[float] = []

    def __call__(self, plan: Plan) -> Outcome:
        self.rates.append(plan.rate)
        rng = np.random.default_rng(plan.seed)
        load = plan.rate / self.capacity
        mean = 0.01 / (1 - load) if load < 0.99 else 5.0
        count = max(1, int(plan.rate * plan.duration))
        lag = 0.0 if plan.rate < self.client_limit else 1.0
        return outcome(plan, rng.exponential(mean, count), lag=lag)


def search(server, slo="p99=200ms", first=20.0) -> find_max.Capacity:
    return find_max.Search(PLAN, objective.parse(slo), server, lambda _: None).find(first)


@pytest.mark.parametrize("first", [5.0, 20.0, 70.0, 400.0])
def test_it_finds_the_rate_at_which_the_objective_is_lost(first):
    # p99 = ln(100) · 10 ms / (1 - load) is 200 ms at a load of 0.77: at 77 requests a second.
    found = search(Queue(), first=first)
    assert found.rate == pytest.approx(77, rel=0.1)
    assert found.lost_at is not None
    assert found.rate < found.lost_at < 1.25 * found.rate
    assert "interval" not in found.as_json()  # it would hold the truth in a fifth of the searches
    assert found.limited_by == "server"


def test_the_answer_is_confirmed_and_the_curve_goes_past_the_knee():
    found = search(Queue())
    assert sum(p.purpose == "confirmation" and p.held and p.rate == found.rate for p in found.curve) == 2
    assert max(point.rate for point in found.curve) > 1.5 * found.rate
    assert found.last.plan.rate == found.rate
    rates = [point["rate"] for point in found.as_json()["curve"]]
    assert rates == sorted(rates)


def test_answers_that_come_after_the_last_send_do_not_make_a_rate_look_higher():
    def answers_50_a_second(plan: Plan) -> Outcome:
        found = outcome(plan, np.full(int(plan.rate * plan.duration), 1.0 if plan.rate > 50 else 0.01))
        seconds = len(found.recorder.groups["all", "score", "", "none", ""].latency) // 50
        found.recorder.windows = [Window(answered=50) for _ in range(seconds + 1)]
        return found

    curve = search(answers_50_a_second).curve
    assert max(point.rate for point in curve) > 70
    assert max(point.achieved for point in curve) < 60


def test_errors_count_against_a_rate_as_latency_does():
    def refuses_above_50(plan: Plan) -> Outcome:
        return outcome(plan, np.full(int(plan.rate * 10), 0.001), errors=int(max(0, plan.rate - 50) * 10))

    found = search(refuses_above_50, slo="p99=200ms,errors=1%")
    assert found.rate == pytest.approx(50, rel=0.06)


def test_a_client_that_gives_out_first_is_not_mistaken_for_the_server():
    found = search(Queue(capacity=10_000, client_limit=300))
    assert found.limited_by == "client"
    assert found.rate == pytest.approx(160)
    assert found.lost_at is None


def test_a_rate_that_was_never_tried_is_not_called_lost():
    found = search(Queue(), slo="p99=1ms", first=20.0)
    tried = [point.rate for point in found.curve if point.purpose == "bracketing"]
    assert found.lost_at == min(tried)


def test_a_client_that_gives_out_does_not_bring_back_a_rate_that_was_lost():
    """80/s holds by chance at first and fails its confirmation; then the client cannot send any more."""
    tried: list[float] = []

    def server(plan: Plan) -> Outcome:
        tried.append(plan.rate)
        spoiled = len(tried) > 9
        late = plan.rate > 80 or (plan.rate > 70 and tried.count(plan.rate) > 1)
        return outcome(plan, np.full(int(plan.rate * 10), 1.0 if late else 0.01), lag=float(spoiled))

    found = search(server)
    assert found.limited_by == "client"
    lost = [point.rate for point in found.curve if not point.held]
    assert found.lost_at == min(lost)
    assert found.rate < min(lost) <= 80


def test_an_objective_that_nothing_holds_has_no_rate():
    found = search(Queue(), slo="p99=1ms")
    assert found.rate is None
    assert not any(point.held for point in found.curve)


def test_interrupting_a_search_says_so():
    with pytest.raises(LoadTestError, match="interrupted"):
        search(lambda plan: outcome(plan, np.full(10, 0.01), interrupted=True))


def test_the_saturation_is_what_a_server_answers_at_most():
    def answers_300(plan: Plan) -> Outcome:
        wanted = int(plan.rate * plan.duration)
        good = min(wanted, int(300 * plan.duration))
        return outcome(plan, np.full(good, 0.01), errors=wanted - good)

    assert find_max.saturation(PLAN, answers_300, lambda _: None) == pytest.approx(300, rel=0.02)


def test_a_server_that_answers_only_the_small_requests_does_not_look_faster():
    def answers_500_titles(plan: Plan) -> Outcome:
        """Of every two requests, one has 9 titles and one has 1; small ones are answered first."""
        wanted = int(plan.rate * plan.duration)
        small, large = wanted / 2, max(0.0, min(wanted / 2, (500 * plan.duration - wanted / 2) / 9))
        found = outcome(plan, np.full(int(small + large), 0.01), errors=int(wanted - small - large))
        found.recorder.titles_scheduled = 5 * wanted
        found.recorder.titles_failed = round(9 * (wanted / 2 - large))
        return found

    assert find_max.saturation(PLAN, answers_500_titles, lambda _: None) == pytest.approx(100, rel=0.02)


def test_a_server_that_is_busy_at_first_is_asked_again_for_its_saturation():
    probes = 0

    def nothing_at_first(plan: Plan) -> Outcome:
        nonlocal probes
        probes += 1
        wanted = int(plan.rate * plan.duration)
        good = 0 if probes == 1 else min(wanted, int(30 * plan.duration))
        return outcome(plan, np.full(good, 0.01), errors=wanted - good)

    assert find_max.saturation(PLAN, nothing_at_first, lambda _: None) == pytest.approx(30, rel=0.02)


def test_a_server_that_answers_nothing_has_the_least_saturation():
    def nothing(plan: Plan) -> Outcome:
        return outcome(plan, np.full(0, 0.01), errors=int(plan.rate * plan.duration))

    assert find_max.saturation(PLAN, nothing, lambda _: None) == 1.0


def test_requests_that_time_out_are_missing_from_the_answers_once():
    """Their titles are among those that failed, and they are not among the answers."""

    def answers_half(plan: Plan) -> Outcome:
        half = round(plan.rate * plan.duration / 2)
        found = outcome(plan, np.full(half, 0.01), errors=half)
        found.recorder.errors = {"timeout": half}
        found.recorder.windows = [Window(answered=half // 10) for _ in range(10)]
        return found

    assert find_max.saturation(PLAN, answers_half, lambda _: None) == pytest.approx(10)


def test_a_probe_that_is_over_within_its_first_second_is_counted_whole():
    def quick(plan: Plan) -> Outcome:
        wanted = int(plan.rate)
        good = min(wanted, 50)
        found = outcome(plan.changed(duration=1.0), np.full(good, 0.001), errors=wanted - good)
        found.recorder.windows = [Window(answered=wanted)]
        return found

    assert find_max.saturation(PLAN, quick, lambda _: None) == pytest.approx(50)
