"""Comparing two runs: real differences are found, and the wandering of a shared machine is not."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

import numpy as np
import pytest

from loadtest import comparing, report
from loadtest.errors import PlanError
from loadtest.plan import make_plan
from loadtest.recorder import Recorder
from loadtest.running import Outcome
from tests.loadtest.test_recorder import record, request


@cache
def run(
    seed: int,
    *,
    scale: float = 1.0,
    seconds: int = 20,
    slow_share: float = 0.0,
    refused: float = 0.0,
    outage: tuple[int, int] = (0, 0),
    refuses: bool = False,
    unsent: int = 0,
) -> report.Report:
    """Lognormal latencies around 20 ms that wander from second to second, as a shared machine's do."""
    rng = np.random.default_rng(seed)
    plan = make_plan({"url": "http://127.0.0.1:1", "duration": seconds, "warmup": 0, "rate": 50})
    recorder = Recorder(0)
    for second in range(seconds):
        mood = rng.lognormal(0, 0.1)
        for place in range(50):
            if outage[0] <= second < outage[1] and refuses:
                unconnected = request(second + place / 50)
                unconnected.written = False
                recorder.dispatched(unconnected)
                recorder.failed(unconnected, "refused", second + place / 50)
                continue
            if outage[0] <= second < outage[1]:
                record(recorder, second + place / 50, 0.001, status=503)
                continue
            if refused and rng.random() < refused:
                record(recorder, second + place / 50, 0.001, status=429)
                continue
            slow = 5.0 if rng.random() < slow_share else 1.0
            record(recorder, second + place / 50, 0.02 * scale * mood * slow * rng.lognormal(0, 0.2))
    recorder.not_sent(unsent)
    return report.build(Outcome(plan, recorder, datetime.now(UTC), seconds, 0.1, False))


def test_a_slower_build_is_found_at_every_percentile():
    for difference in comparing.compare(run(1), run(2, scale=1.3)):
        assert difference.low < 0.3 < difference.high + 0.1
        assert difference.slower_than(0.05)
        assert difference.change == pytest.approx(0.3, abs=0.12)


def test_a_slower_tail_shows_in_the_tail_only():
    found = {d.percentile: d for d in comparing.compare(run(1), run(2, slow_share=0.03))}
    assert not found["p50"].slower_than(0.05)
    assert found["p99"].slower_than(0.5)


def test_the_same_build_twice_is_hardly_ever_called_slower():
    runs = [run(seed) for seed in range(1, 7)]
    called = sum(
        d.low > 0 or d.high < 0
        for a, b in zip(runs[::2], runs[1::2], strict=True)
        for d in comparing.compare(a, b)[:2]
    )
    assert called <= 2  # of 6 intervals, each wrong one time in twenty


def test_of_intervals_at_p99_without_a_difference_95_percent_hold_0():
    """The truth is known: both runs are drawn alike, with seconds whose speed wanders slowly. Of a block
    bootstrap's intervals a tenth miss it."""
    rng = np.random.default_rng(0)
    edges = np.exp(np.arange(np.log(2), np.log(400), 0.01))

    def windows() -> np.ndarray:
        mood = np.zeros(30)
        for second in range(1, 30):
            mood[second] = 0.3 * mood[second - 1] + rng.normal(0, 0.12)
        latencies = np.exp(rng.normal(np.log(20), 0.5, (30, 200)) + mood[:, None])
        return np.stack([np.histogram(row, edges)[0] for row in latencies]).astype(float)

    held = 0
    for _ in range(250):
        _, low, high = comparing._ratios(edges[:-1], [windows(), windows()], [99.0])
        held += int(low[0] <= 0 <= high[0])
    assert 230 <= held <= 248  # 237 expected, standard deviation 3.4


def test_a_build_that_answers_fewer_requests_is_found_and_a_stray_failure_is_not():
    worse = comparing.unanswered(run(1), run(2, refused=0.6))
    assert worse.a == 0
    assert worse.b == worse.change == pytest.approx(0.6, abs=0.05)
    assert worse.low > 0.5
    assert worse.is_worse
    assert not comparing.unanswered(run(2, refused=0.6), run(1)).is_worse
    assert not comparing.unanswered(run(2, refused=0.6), run(3, refused=0.6)).is_worse
    assert not comparing.unanswered(run(1), run(2, refused=0.002)).is_worse


def test_an_outage_in_one_piece_is_found_unless_both_runs_had_one():
    """The few windows of an outage are missing from many resamples, so that its interval begins at 0."""
    clean, outage = run(1), run(2, outage=(10, 14))
    worse = comparing.unanswered(clean, outage)
    assert worse.low == 0
    assert worse.is_worse
    assert not comparing.unanswered(outage, clean).is_worse
    assert not comparing.unanswered(outage, run(3, outage=(3, 7))).is_worse


def test_an_outage_that_refuses_connections_is_valid_and_found():
    refusing = run(2, outage=(10, 14), refuses=True)
    assert refusing["valid"]
    assert refusing["requests"]["errors"] == {"refused": 200}
    assert comparing.unanswered(run(1), refusing).is_worse


def test_requests_that_were_never_sent_are_unanswered():
    assert comparing.unanswered(run(1), run(2, unsent=10)).b == pytest.approx(10 / 1010)


def test_a_run_equals_itself():
    one = run(1)
    assert all(d.change == 0 and d.low <= 0 <= d.high for d in comparing.compare(one, one))


def test_percentiles_that_too_few_requests_lie_beyond_are_left_out():
    assert [d.percentile for d in comparing.compare(run(1, seconds=12), run(2, seconds=12))] == ["p50", "p90"]
    with pytest.raises(PlanError, match="the second run is too short"):
        comparing.compare(run(1, seconds=12), run(2, seconds=4))


def test_what_the_plans_differ_in_is_named():
    one = run(1)
    two = {**one, "plan": {**one["plan"], "rate": 60, "url": "http://elsewhere"}}
    assert comparing.plans_differ_in(one, two) == ["rate"]
