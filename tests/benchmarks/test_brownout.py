"""The simulation of brownout: it relieves an overload, and nothing happens without one."""

from __future__ import annotations

from math import inf

from benchmarks.brownout import TITLES, play


def test_brownout_answers_what_would_be_refused_and_only_under_load() -> None:
    without, relieved = play(1.2, inf), play(1.2, 5_000)
    assert without.degraded == 0
    assert without.refused > 0.1 * without.sent
    assert relieved.refused < 0.01 * relieved.sent
    assert relieved.degraded > 0.2 * relieved.sent
    assert play(0.5, 20_000).degraded == 0


def test_only_answered_requests_have_a_latency() -> None:
    run = play(2.0, inf)
    assert len(run.latencies["small"]) * TITLES == run.answered_titles
    assert len(run.latencies["small"]) + run.refused + len(run.open_ages["small"]) == run.sent
    assert run.open_ages["small"]
