"""Runs of the load tester for tests, and claims about times on a machine that others use too."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headroom.loadtest.plan import make_plan
from headroom.loadtest.running import Outcome, run

ATTEMPTS = 6


def measure(url: str, *, began: Callable[[float], None] | None = None, **plan: Any) -> Outcome:
    """Run single-title requests, evenly spaced unless the plan says otherwise."""
    values = {"url": url, "arrivals": "constant", "warmup": 0.3, "traffic": [{"titles": 1}], **plan}
    return run(make_plan(values), began=began)


def assert_soon(claim: Callable[[], Mapping[str, tuple[float, float]]], tolerance: float = 0.02) -> None:
    """Assert that measured and true values agree in one of a few attempts.

    claim: measures, and returns (measured, true) by name. What it claims is about the tool on a quiet
    machine; a busy one delays the server, the client or the referee now and then, but not every time.
    """
    reports = []
    for _ in range(ATTEMPTS):
        values = claim()
        wrong = {n: v for n, v in values.items() if v[0] != pytest.approx(v[1], rel=tolerance)}
        if not wrong:
            return
        reports.append(wrong)
    raise AssertionError(f"(measured, true) that differ by more than {tolerance:.0%}, by attempt: {reports}")


def percentiles(outcome: Outcome, *percents: float) -> list[float]:
    """Return percentiles of the latency in milliseconds."""
    latency = outcome.recorder.latency()
    return [latency.percentile_ms(percent) or 0.0 for percent in percents]
