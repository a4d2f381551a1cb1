"""The search for the highest rate, on servers whose highest rate is known: formulas instead of traffic."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from headroom.loadtest import find_max, judging
from headroom.loadtest.plan import LoadTestError, Plan, make_plan
from headroom.loadtest.recorder import Recorder, Tally
from headroom.loadtest.running import Outcome

pytestmark = pytest.mark.more

PLAN = make_plan({"url": "http://127.0.0.1:1", "duration": 10, "warmup": 0, "rate": 50})


@pytest.fixture(autouse=True)
def _nothing_to_settle(monkeypatch):
    monkeypatch.setattr(find_max, "SETTLE_S", 0.0)


def outcome(
    plan: Plan, latencies: np.ndarray, *, errors: int = 0, lag: float = 0.0, interrupted: bool = False
) -> Outcome:
    """A run of ten windows with these latencies, all of requests with one title."""
    recorder = Recorder(0)
    group = recorder.groups.setdefault(("all", "score", "", "none", ""), Tally())
    for value in latencies:
        group.latency.record(float(value))
        recorder.send_lag.record(lag)
    recorder.ok = len(latencies)
    recorder.sent = recorder.scheduled = recorder.titles = recorder.ok + errors
    recorder.errors = Counter(http_429=errors) if errors else Counter()
    recorder.windows = [Tally(answered=recorder.sent // 10, titles=recorder.ok // 10) for _ in range(10)]
    return Outcome(plan, recorder, datetime.now(UTC), plan.duration, 0.1, interrupted)


def queue(capacity: float = 100.0, client_limit: float = 1e9) -> find_max.Probe:
    """A server of one worker and 10 ms a request: latencies are exponential with mean 10 ms / (1 - load)."""

    def probe(plan: Plan) -> Outcome:
        load = plan.rate / capacity
        mean = 0.01 / (1 - load) if load < 0.99 else 5.0
        count = max(1, int(plan.rate * plan.duration))
        lag = 0.0 if plan.rate < client_limit else 1.0
        return outcome(plan, np.random.default_rng(plan.seed).exponential(mean, count), lag=lag)

    return probe


def search(probe: find_max.Probe, slo: str = "p99=200ms", first: float = 20.0) -> SimpleNamespace:
    """What a search finds, with attributes in place of keys. last: the run to report."""
    found, last = find_max.Search(PLAN, judging.parse(slo), probe, lambda _: None).find(first)
    points = [SimpleNamespace(**point) for point in found.pop("curve")]
    return SimpleNamespace(**found, curve=points, last=last)


@pytest.mark.parametrize("first", [5.0, 20.0, 70.0, 400.0])
def test_it_finds_and_confirms_the_rate_at_which_the_objective_is_lost(first):
    # p99 = ln(100) · 10 ms / (1 - load) is 200 ms at a load of 0.77: at 77 requests a second.
    found = search(queue(), first=first)
    assert found.rate == found.last.plan.rate == pytest.approx(77, rel=0.1)
    assert found.lost_at is not None
    assert found.rate < found.lost_at < 1.25 * found.rate
    assert sum(p.purpose == "confirmation" and p.held and p.rate == found.rate for p in found.curve) == 2
    rates = [point.rate for point in found.curve]
    assert rates == sorted(rates)


def test_a_confirmation_that_failed_leaves_no_run_to_report_at_its_rate():
    confirmed: list[float] = []

    def probe(plan: Plan) -> Outcome:
        """Holds up to 80 a second, but one confirmation of the first rate that is tried again fails."""
        confirmed.append(plan.rate)
        is_second = confirmed.count(plan.rate) == 3 and plan.rate == confirmed[0]
        slow = plan.rate > 80 or is_second
        return outcome(plan, np.full(int(plan.rate * plan.duration), 5.0 if slow else 0.01))

    found = search(probe, first=79.0)
    assert found.rate == pytest.approx(79 / 1.05)
    assert found.last.plan.rate == found.rate


def test_answers_that_were_not_reranked_are_failures_unless_let_through_by_name():
    def unreranked_above_50(plan: Plan) -> Outcome:
        """A server that answers the original order beyond 50 requests a second."""
        count = int(plan.rate * plan.duration)
        found = outcome(plan, np.full(count, 0.01))
        kept = max(0, count - int(50 * plan.duration))
        found.recorder.windows[0].unreranked = kept if plan.rate < 500 else count
        return found

    found = search(unreranked_above_50)
    assert found.rate == pytest.approx(50, rel=0.06)
    lost = [point for point in found.curve if not point.held]
    assert all("were not reranked" in point.missed_because[0] for point in lost)
    assert min(point.unreranked for point in lost) > 0.001
    tolerant = search(unreranked_above_50, slo="p99=200ms,unreranked=60%")
    assert tolerant.rate == pytest.approx(50 / 0.4, rel=0.06)


def test_answers_that_come_after_the_last_send_do_not_make_a_rate_look_higher():
    def answers_50_a_second(plan: Plan) -> Outcome:
        wanted = int(plan.rate * plan.duration)
        found = outcome(plan, np.full(wanted, 1.0 if plan.rate > 50 else 0.01))
        found.recorder.windows = [Tally(answered=50) for _ in range(wanted // 50 + 1)]
        return found

    curve = search(answers_50_a_second).curve
    assert max(point.rate for point in curve) > 70
    assert max(point.achieved for point in curve) < 60


def test_a_client_that_gives_out_first_is_not_mistaken_for_the_server():
    with pytest.raises(LoadTestError, match="the client reached its limit before the server"):
        search(queue(capacity=10_000, client_limit=300))


def test_an_objective_that_nothing_holds_has_no_rate():
    found = search(queue(), slo="p99=1ms")
    assert found.rate is None
    assert not any(point.held for point in found.curve)
    assert found.lost_at == min(point.rate for point in found.curve)


def test_interrupting_a_search_says_so():
    with pytest.raises(LoadTestError, match="interrupted"):
        search(lambda plan: outcome(plan, np.full(10, 0.01), interrupted=True))


def test_an_interrupted_search_keeps_its_probes():
    """The objective is lost at 77 a second: 70 holds, and 140 and their geometric mean do not."""
    served = queue()
    probes = iter(range(100))

    def probe(plan: Plan) -> Outcome:
        return replace(served(plan), interrupted=next(probes) == 3)

    found = search(probe, first=70.0)
    assert (found.rate, found.interrupted) == (None, True)
    assert found.lost_at == pytest.approx(70 * 2**0.5)
    assert [round(point.rate) for point in found.curve] == [70, 99, 140]
    assert [point.held for point in found.curve] == [True, False, False]


def answers(per_second: float, idle_probes: int = 0) -> Callable[[Plan], Outcome]:
    """A server that answers so many requests a second, but none in its first probes."""
    probes = iter(range(100))

    def probe(plan: Plan) -> Outcome:
        wanted = int(plan.rate * plan.duration)
        good = 0 if next(probes) < idle_probes else min(wanted, int(per_second * plan.duration))
        return outcome(plan, np.full(good, 0.01), errors=wanted - good)

    return probe


@pytest.mark.parametrize(
    ("probe", "rate"),
    [(answers(300), 300), (answers(30, idle_probes=1), 30), (answers(0), 1)],
    ids=["steady", "busy at first", "answers nothing"],
)
def test_the_saturation_is_what_a_server_answers_at_most(probe, rate):
    assert find_max.saturation(PLAN, probe, lambda _: None) == pytest.approx(rate, rel=0.02)


def test_the_saturation_of_a_ramp_from_a_multiple_of_it_is_measured_at_steady_rates():
    ramp = PLAN.changed(arrivals="ramp", rate="0.5x", rate_to=100)
    assert find_max.saturation(ramp, answers(300), lambda _: None) == pytest.approx(300, rel=0.02)


def test_a_server_that_answers_only_the_small_requests_does_not_look_faster():
    def answers_500_titles(plan: Plan) -> Outcome:
        """Of every two requests, one has 9 titles and one has 1; small ones are answered first."""
        wanted = int(plan.rate * plan.duration)
        small, large = wanted / 2, max(0.0, min(wanted / 2, (500 * plan.duration - wanted / 2) / 9))
        found = outcome(plan, np.full(int(small + large), 0.01), errors=int(wanted - small - large))
        found.recorder.titles = 5 * wanted
        found.recorder.windows = [Tally(titles=round((small + 9 * large) / 10)) for _ in range(10)]
        return found

    assert find_max.saturation(PLAN, answers_500_titles, lambda _: None) == pytest.approx(100, rel=0.02)
