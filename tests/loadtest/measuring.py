"""Runs of the load tester for tests, and claims about times on a machine that others use too."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from headroom.loadtest.plan import make_plan
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.running import Outcome, run

ATTEMPTS = 6


def ran(
    recorder: Recorder,
    duration: float,
    *,
    cpu_share: float | None = 0.1,
    interrupted: bool = False,
    **plan: Any,
) -> Outcome:
    """Return a run that recorded this."""
    values = {"url": "http://127.0.0.1:1", "warmup": 0, "duration": duration, **plan}
    return Outcome(make_plan(values), recorder, datetime.now(UTC), duration, cpu_share, interrupted)


def measure(url: str, *, began: Callable[[float], None] | None = None, **plan: Any) -> Outcome:
    """Run single-title requests, evenly spaced unless the plan says otherwise."""
    values = {"url": url, "arrivals": "constant", "warmup": 0.3, "traffic": [{"titles": 1}], **plan}
    return run(make_plan(values), began=began)


def assert_soon(
    claim: Callable[[], Mapping[str, tuple[float, float]]], early: float = 0.02, late: float = 0.15
) -> None:
    """Assert that measured and true values agree in one of a few attempts.

    claim: measures, and returns (measured, true) by name.
    early, late: the shares of the true value by which the measured one may be below and above it. A busy
    machine wakes the client late and never early; a wait that is hidden is off by half and more.
    """
    reports = []
    for _ in range(ATTEMPTS):
        values = claim()
        wrong = {
            name: (measured, true)
            for name, (measured, true) in values.items()
            if not true * (1 - early) <= measured <= true * (1 + late)
        }
        if not wrong:
            return
        reports.append(wrong)
    raise AssertionError(f"(measured, true) that differ too much, by attempt: {reports}")


def percentiles(outcome: Outcome, *percents: float) -> list[float]:
    """Return percentiles of the latency in milliseconds."""
    latency = outcome.recorder.latency()
    return [latency.percentile_ms(percent) or 0.0 for percent in percents]
