"""Comparing two runs: real differences are found, and the wandering of a shared machine is not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from headroom.loadtest import comparing, report
from headroom.loadtest.recorder import Recorder
from tests.loadtest.measuring import ran
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
    unsent: int = 0,
) -> report.Report:
    """Lognormal latencies around 20 ms that wander from second to second, as a shared machine's do."""
    rng = np.random.default_rng(seed)
    recorder = Recorder(0)
    for second in range(seconds):
        mood = rng.lognormal(0, 0.1)
        for at in second + np.arange(50) / 50:
            slow = 5.0 if rng.random() < slow_share else 1.0
            if outage[0] <= second < outage[1]:
                unconnected = replace(request(at), written=False)
                recorder.dispatched(unconnected)
                recorder.failed(unconnected, "refused", at)
            elif refused and rng.random() < refused:
                record(recorder, at, 0.001, status=429)
            else:
                record(recorder, at, 0.02 * scale * mood * slow * rng.lognormal(0, 0.2))
    recorder.not_sent(unsent)
    return report.build(ran(recorder, seconds, rate=50))


def test_a_slower_build_is_found_at_every_percentile():
    for difference in comparing.compare(run(1), run(2, scale=1.3)).differences:
        assert difference.low < 0.3 < difference.high + 0.1
        assert difference.slower_than(0.05)
        assert difference.change == pytest.approx(0.3, abs=0.12)


def test_a_slower_tail_shows_in_the_tail_only():
    found = {d.percentile: d for d in comparing.compare(run(1), run(2, slow_share=0.03)).differences}
    assert not found["p50"].slower_than(0.05)
    assert found["p99"].slower_than(0.5)


def test_of_intervals_at_p99_without_a_difference_95_percent_hold_0():
    """The truth is known: both runs are drawn alike, with seconds whose speed wanders slowly."""
    rng = np.random.default_rng(0)

    def run_and_sections() -> list[float]:
        mood = np.zeros(30)
        for second in range(1, 30):
            mood[second] = 0.3 * mood[second - 1] + rng.normal(0, 0.12)
        latencies = np.exp(rng.normal(np.log(20), 0.5, (30, 200)) + mood[:, None])
        parts = [latencies, *np.array_split(latencies, comparing.SECTIONS)]
        return [float(np.quantile(part, 0.99, method="inverted_cdf")) for part in parts]

    held = 0
    for _ in range(250):
        found = comparing.difference(99.0, run_and_sections(), run_and_sections())
        held += found.low <= 0 <= found.high
    assert 230 <= held <= 248  # 237 expected, standard deviation 3.4


def test_a_build_that_answers_fewer_requests_is_found_and_a_stray_failure_is_not():
    worse = comparing.unanswered(run(1), run(2, refused=0.6))
    assert (worse.a, worse.b) == (0, pytest.approx(0.6, abs=0.05))
    assert worse.is_worse
    assert not comparing.unanswered(run(2, refused=0.6), run(1)).is_worse
    assert not comparing.unanswered(run(2, refused=0.6), run(3, refused=0.6)).is_worse
    assert not comparing.unanswered(run(1), run(2, refused=0.002)).is_worse


def test_an_outage_that_refuses_connections_is_valid_and_found_unless_both_runs_had_one():
    refusing = run(2, outage=(10, 14))
    assert refusing["valid"]
    assert refusing["requests"]["errors"] == {"refused": 200}
    assert comparing.unanswered(run(1), refusing).is_worse
    assert not comparing.unanswered(refusing, run(3, outage=(3, 7))).is_worse


def test_requests_that_were_never_sent_are_unanswered():
    assert comparing.unanswered(run(1), run(2, unsent=10)).b == pytest.approx(10 / 1010)


def test_answers_in_the_callers_order_are_unanswered():
    worse = run(2)
    worse["requests"]["unreranked"] = worse["requests"]["ok"]
    assert comparing.unanswered(run(1), worse).b == 1
    assert comparing.unanswered(run(1), worse).is_worse


@pytest.mark.parametrize(
    ("requests", "compared"),
    [
        (20, ["p50"]),
        (99, ["p50"]),
        (100, ["p50", "p90"]),
        (999, ["p50", "p90"]),
        (1000, ["p50", "p90", "p99"]),
    ],
)
def test_a_percentile_is_compared_from_the_number_of_requests_that_leaves_ten_beyond_it(requests, compared):
    recorder = Recorder(0)
    for at in np.arange(requests) * 10 / requests:
        record(recorder, float(at), 0.02)
    short = report.build(ran(recorder, 10, rate=50))
    assert [d.percentile for d in comparing.compare(short, run(1)).differences] == compared


def test_what_the_plans_differ_in_is_named():
    one = run(1)
    two = {**one, "plan": {**one["plan"], "rate": 60, "url": "http://elsewhere"}}
    assert comparing.plans_differ_in(one, two) == ["rate"]
