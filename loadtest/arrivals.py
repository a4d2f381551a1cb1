"""The schedule: a seeded sequence of intended send times, generated in chunks and possibly endless.

Arrivals of rate 1 (Poisson, or evenly spaced) are mapped through the inverse of the cumulative rate. The n-th
time is computed from its position, not by adding rounded intervals, so no schedule drifts.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headroom.loadtest.plan import STEPS, Phase, Plan, PlanError

CHUNK = 256
"""Number of arrivals that are generated at a time."""

Times = NDArray[np.float64]


def profile(plan: Plan) -> list[Phase]:
    """Return the rate over time of the measured part; not for traces or rates that are still unknown."""
    if plan.phases:
        return list(plan.phases)
    assert not isinstance(plan.rate, str), "a multiple of the saturation is replaced before the run"
    if plan.arrivals == "ramp":
        return [Phase(for_=plan.duration, rate=plan.rate, to=plan.rate_to)]
    if plan.arrivals == "step" and plan.rate_to is not None:
        rates = np.linspace(plan.rate, plan.rate_to, STEPS).tolist()
        return [Phase(for_=plan.duration / STEPS, rate=rate) for rate in rates]
    return [Phase(for_=plan.duration, rate=plan.rate)]


def duration(plan: Plan) -> float:
    """Return the length of the measured part in seconds: 0 for a trace with a burst at one time.

    Raises PlanError if a trace is wrong or has no such part.
    """
    if plan.trace is None:
        return sum(phase.for_ for phase in profile(plan))
    last = float(read_trace(plan.trace)[-1])
    if last < plan.warmup:
        raise PlanError(
            f"trace: {plan.trace} ends after {last:g} s, within the warm-up of {plan.warmup:g} s:"
            " set a shorter --warmup, or use a longer trace"
        )
    return last - plan.warmup


def chunks(plan: Plan) -> Iterator[Times]:
    """Yield ascending send times in seconds since the start; those below `plan.warmup` are warm-up."""
    if plan.trace is not None:
        times = read_trace(plan.trace)
        return (times[first : first + CHUNK] for first in range(0, len(times), CHUNK))
    measured = profile(plan)
    warmup = [Phase(for_=plan.warmup, rate=measured[0].rate)] if plan.warmup else []
    return _warped(_unit_arrivals(plan), warmup + measured)


def expected(plan: Plan) -> float:
    """Return the expected number of requests in the measured part."""
    if plan.trace is not None:
        return float(count(plan))
    return sum(phase.requests for phase in profile(plan))


def count(plan: Plan) -> int:
    """Return the number of measured requests in the schedule."""
    return sum(int(np.count_nonzero(times >= plan.warmup)) for times in chunks(plan))


def _unit_arrivals(plan: Plan) -> Iterator[Times]:
    """Yield an endless sequence of arrivals of rate 1."""
    if plan.arrivals == "constant":
        first = 0
        while True:
            yield np.arange(first, first + CHUNK, dtype=np.float64)
            first += CHUNK
    rng = np.random.default_rng([plan.seed, 0])
    last = 0.0
    while True:
        chunk = last + np.cumsum(rng.exponential(size=CHUNK))
        last = float(chunk[-1])
        yield chunk


def _warped(units: Iterator[Times], phases: list[Phase]) -> Iterator[Times]:
    expected = np.cumsum([0.0] + [phase.requests for phase in phases])
    starts = np.cumsum([0.0] + [phase.for_ for phase in phases])
    rate = np.array([phase.rate for phase in phases])
    slope = np.array([(phase.last_rate - phase.rate) / phase.for_ for phase in phases])
    for unit in units:
        inside = unit[unit < expected[-1]]
        index = np.searchsorted(expected, inside, side="right") - 1
        past = inside - expected[index]
        # The root of rate·x + slope·x²/2 = past, in the form that also holds for a slope of 0.
        root = np.sqrt(np.maximum(rate[index] ** 2 + 2 * slope[index] * past, 0.0))
        with np.errstate(invalid="ignore"):
            x = np.where(past > 0, 2 * past / (rate[index] + root), 0.0)
        if len(inside):
            yield starts[index] + x
        if len(inside) < len(unit):
            return


def read_trace(path: Path) -> Times:
    """Return a file's times: seconds on each line, counted from the first time.

    Empty lines and what follows a # are skipped. Raises PlanError.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of an empty file
            times: Times = np.loadtxt(path, ndmin=1, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as times in seconds: {error}") from None
    if times.ndim > 1:
        raise PlanError(f"{path}: holds more than one time on a line")
    if not len(times):
        raise PlanError(f"{path}: holds no times")
    if not np.all(np.isfinite(times)):
        raise PlanError(f"{path}: a time must be finite")
    if np.any(np.diff(times) < 0):
        raise PlanError(f"{path}: times must not go backwards")
    times -= times[0]
    return times
