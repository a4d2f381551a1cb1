"""The schedule: a seeded sequence of intended send times, generated in chunks and possibly endless.

Arrivals of rate 1 (Poisson, or evenly spaced) are mapped through the inverse of the cumulative rate. The n-th
time is computed from its position, not by adding rounded intervals, so no schedule drifts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import PlanError
from loadtest.plan import Plan

CHUNK = 256
"""Number of arrivals that are generated at a time."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time in which the rate changes linearly from `rate` to `rate_to`."""

    seconds: float
    rate: float
    rate_to: float

    @property
    def requests(self) -> float:
        """The expected number of requests."""
        return self.seconds * (self.rate + self.rate_to) / 2


def profile(plan: Plan) -> list[Stretch]:
    """Return the rate over time of the measured part; not for traces or rates that are still unknown."""
    if plan.phases:
        return [Stretch(p.for_, p.rate, p.rate if p.to is None else p.to) for p in plan.phases]
    assert not isinstance(plan.rate, str), "a multiple of the saturation is replaced before the run"
    if plan.arrivals == "ramp" and plan.rate_to is not None:
        return [Stretch(plan.duration, plan.rate, plan.rate_to)]
    if plan.arrivals == "step" and plan.rate_to is not None:
        rates = np.linspace(plan.rate, plan.rate_to, plan.steps)
        return [Stretch(plan.duration / plan.steps, float(rate), float(rate)) for rate in rates]
    return [Stretch(plan.duration, plan.rate, plan.rate)]


def duration(plan: Plan) -> float:
    """Return the length of the measured part in seconds. Raises PlanError if a trace is wrong or has none."""
    if plan.arrivals == "trace":
        last = 0.0
        for chunk in _trace(plan):
            last = float(chunk[-1])
        if last < plan.warmup:
            raise PlanError(
                f"trace: {plan.trace} ends after {last:g} s, within the warm-up of {plan.warmup:g} s:"
                " set a shorter --warmup, or use a longer trace"
            )
        return max(last - plan.warmup, 1e-9)
    return sum(stretch.seconds for stretch in profile(plan))


def chunks(plan: Plan) -> Iterator[Times]:
    """Yield ascending send times in seconds since the start; those below `plan.warmup` are warm-up."""
    if plan.arrivals == "trace":
        return _trace(plan)
    measured = profile(plan)
    warmup = [Stretch(plan.warmup, measured[0].rate, measured[0].rate)] if plan.warmup else []
    return _warped(_unit_arrivals(plan), warmup + measured)


def expected(plan: Plan) -> float:
    """Return the expected number of requests in the measured part."""
    if plan.arrivals == "trace":
        return float(count(plan))
    return sum(stretch.requests for stretch in profile(plan))


def count(plan: Plan, process: int = 0, processes: int = 1) -> int:
    """Return the number of measured requests in one process's share of the schedule."""
    first = total = 0
    for times in chunks(plan):
        total += int(np.count_nonzero(times[(process - first) % processes :: processes] >= plan.warmup))
        first += len(times)
    return total


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


def _warped(units: Iterator[Times], stretches: list[Stretch]) -> Iterator[Times]:
    expected = np.cumsum([0.0] + [stretch.requests for stretch in stretches])
    starts = np.cumsum([0.0] + [stretch.seconds for stretch in stretches])
    rate = np.array([stretch.rate for stretch in stretches])
    slope = np.array([(stretch.rate_to - stretch.rate) / stretch.seconds for stretch in stretches])
    for unit in units:
        inside = unit[unit < expected[-1]]
        place = np.searchsorted(expected, inside, side="right") - 1
        past = inside - expected[place]
        # The root of rate·x + slope·x²/2 = past, in the form that also holds for a slope of 0.
        root = np.sqrt(np.maximum(rate[place] ** 2 + 2 * slope[place] * past, 0.0))
        with np.errstate(invalid="ignore"):
            x = np.where(past > 0, 2 * past / (rate[place] + root), 0.0)
        if len(inside):
            yield starts[place] + x
        if len(inside) < len(unit):
            return


def _trace(plan: Plan) -> Iterator[Times]:
    """Yield a file's times: seconds in the first column of each line, counted from the first line."""
    path = plan.trace
    assert path is not None
    numbers = _numbers(path)
    origin, last = None, 0.0
    while True:
        chunk = np.fromiter(islice(numbers, CHUNK), dtype=np.float64)
        if not len(chunk):
            break
        origin = float(chunk[0]) if origin is None else origin
        chunk -= origin
        if chunk[0] < last or np.any(np.diff(chunk) < 0):
            raise PlanError(f"{path}: times must not go backwards")
        last = float(chunk[-1])
        yield chunk
    if origin is None:
        raise PlanError(f"{path}: holds no times")


def _numbers(path: Path) -> Iterator[float]:
    try:
        with path.open(encoding="utf-8-sig") as lines:  # a spreadsheet may have put a byte order mark first
            for number, line in enumerate(lines, start=1):
                text = line.replace(",", " ").replace("\t", " ").split(maxsplit=1)
                if not text or text[0].startswith("#"):
                    continue
                try:
                    value = float(text[0])
                except ValueError:
                    if number == 1:  # a header
                        continue
                    raise PlanError(f"{path}, line {number}: {text[0]!r} is not a time in seconds") from None
                if not np.isfinite(value):
                    raise PlanError(f"{path}, line {number}: a time must be finite")
                yield value
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {error}") from None
