"""Compares two runs: how much their percentiles and unanswered requests differ, with confidence intervals.

Neighbouring requests share a queue, so treating them as independent would make intervals far too narrow.
A percentile's error comes from sectioning (Asmussen and Glynn 2007, Stochastic Simulation, III.5a): the run
is cut into SECTIONS stretches, and the spread of their percentiles around the whole run's gives the error,
with Student's t for so few sections (Welch for the two runs). In simulated runs without a difference, whose
speed wanders from second to second, 92 to 96 % of the intervals held 0, at p50 and p99; of a block
bootstrap's 84 to 92 %. The difference of the shares of requests without a good answer has its interval from a
bootstrap over the run's windows, in moving blocks of neighbours.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from loadtest.errors import PlanError
from loadtest.histogram import Histogram, ranks
from loadtest.report import Report

PERCENTS = (50.0, 90.0, 99.0, 99.9)
GATED = ("p50", "p90", "p99")
"""The percentiles that --fail-if-slower checks."""

MORE_UNANSWERED = 0.001
"""How much larger B's share of unanswered requests is if --fail-if-slower fails; its interval counts too."""

OUTAGE = 0.01
"""How far B's share lies above A's own interval if --fail-if-slower fails in any case."""

ROUNDS = 1000
CONFIDENCE = 0.95
MIN_WINDOWS = 8
SECTIONS = 5
MIN_BEYOND = 10
"""Requests that must lie beyond a percentile in both runs, or it is not compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A percentile of both runs. change: b over a, 0.05 is 5 % slower; low, high: its 95 % interval."""

    percentile: str
    a_ms: float
    b_ms: float
    change: float
    low: float
    high: float

    def slower_than(self, share: float) -> bool:
        """Return whether b is slower by more than `share`, and its whole interval is above zero."""
        return self.change > share and self.low > 0


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The shares of requests without a good answer. change: b less a; low, high: its 95 % interval.

    a_high: upper end of the interval of a alone.
    """

    a: float
    b: float
    change: float
    low: float
    high: float
    a_high: float

    @property
    def is_worse(self) -> bool:
        """Whether b answers fewer requests: by MORE_UNANSWERED, and with its whole interval above zero.

        An outage in one piece is missing from some resamples of b, so that low may be 0. Therefore b also
        answers fewer if its share is OUTAGE above the interval of a alone.
        """
        has_outage = self.b > self.a_high + OUTAGE
        return has_outage or (self.change > MORE_UNANSWERED and self.low > 0)


def unanswered(a: Report, b: Report, *, seed: int = 1) -> Unanswered:
    """Return how much the shares of unanswered requests differ."""
    rng = np.random.default_rng(seed)
    counts = [_outcomes(report) for report in (a, b)]
    one, two = (_share_failed(matrix.sum(axis=0)[None, :])[0] for matrix in counts)
    drawn = [_share_failed(_resampled(matrix, rng)) for matrix in counts]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn[1] - drawn[0], [tail, 1 - tail])
    a_high = np.quantile(drawn[0], 1 - tail)
    return Unanswered(float(one), float(two), float(two - one), float(low), float(high), float(a_high))


def compare(a: Report, b: Report) -> list[Difference]:
    """Return the differences for which both runs are long enough. Raises PlanError if there are none."""
    runs = [_windows(a, "the first run"), _windows(b, "the second run")]
    values = np.union1d(runs[0][0], runs[1][0])
    counts = [_aligned(values, *run) for run in runs]
    requests = min(int(matrix.sum()) for matrix in counts)
    percents = [p for p in PERCENTS if requests * (1 - p / 100) >= MIN_BEYOND]
    if not percents:
        raise PlanError("the runs are too short to compare: even the median has too few requests beyond it")
    measured, low, high = _ratios(values, counts, percents)
    return [
        Difference(
            f"p{percent:g}",
            float(measured[0][i]),
            float(measured[1][i]),
            float(measured[1][i] / measured[0][i] - 1),
            float(low[i]),
            float(high[i]),
        )
        for i, percent in enumerate(percents)
    ]


def as_json(differences: list[Difference], failed: Unanswered, a: Report, b: Report) -> dict[str, Any]:
    """Return the comparison as plain values."""
    return {
        "schema": 1,
        "differences": [asdict(difference) for difference in differences],
        "unanswered": asdict(failed),
        "rate": [report["rate"] for report in (a, b)],
        "errors": [report["requests"]["errors"] for report in (a, b)],
        "plans_differ_in": plans_differ_in(a, b),
    }


def plans_differ_in(a: Report, b: Report) -> list[str]:
    """Return the fields, except the address, in which the plans differ, so that the user can judge them."""
    one, two = a["plan"], b["plan"]
    return sorted(
        name for name in one.keys() | two.keys() if name != "url" and one.get(name) != two.get(name)
    )


def _outcomes(report: Report) -> NDArray[np.float64]:
    """Return the counts of good answers and of failures by window: (windows, 2).

    Requests that were never sent have no window; they are failures of the last one.
    """
    windows = [(window["ok"], window["errors"]) for window in report["series"]["windows"]]
    counts = np.array([counts for counts in windows if any(counts)] or [(0, 0)], dtype=float)
    counts[-1, 1] += report["requests"]["errors"].get("not_sent", 0)
    return counts


def _share_failed(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of failures of each round: (rounds, 2) → (rounds,)."""
    share: NDArray[np.float64] = counts[:, 1] / np.maximum(1.0, counts.sum(axis=1))
    return share


def _windows(report: Report, which: str) -> tuple[NDArray[np.float64], list[tuple[Any, Any]]]:
    """Return all values, and (milliseconds, counts) of each window that lies wholly inside the run."""
    series = report["series"]
    width, seconds = series["window_seconds"], report["seconds"]
    parts = [
        Histogram.decode(window["latency"]).counts()
        for window in series["windows"]
        if window["latency"] is not None and window["at"] + width <= seconds * (1 + 1e-9)
    ]
    if len(parts) < MIN_WINDOWS:
        raise PlanError(
            f"{which} is too short to compare: {len(parts)} stretches of time, under {MIN_WINDOWS}"
        )
    return np.unique(np.concatenate([values for values, _ in parts])), parts


def _aligned(
    values: NDArray[np.float64], _own: NDArray[np.float64], parts: list[tuple[Any, Any]]
) -> NDArray[np.float64]:
    """Return counts by window and value: (windows, values)."""
    matrix = np.zeros((len(parts), len(values)))
    for row, (milliseconds, counts) in zip(matrix, parts, strict=True):
        row[np.searchsorted(values, milliseconds)] = counts
    return matrix


def _ratios(
    values: NDArray[np.float64], counts: list[NDArray[np.float64]], percents: list[float]
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64], NDArray[np.float64]]:
    """Return both runs' percentiles, and the ends of the intervals of b over a − 1. counts: by window."""
    measured = [_percentiles(values, matrix.sum(axis=0)[None, :], percents)[0] for matrix in counts]
    errors = [_squared_errors(values, matrix, percents) for matrix in counts]
    total = errors[0] + errors[1]
    freedom = total**2 / np.maximum((errors[0] ** 2 + errors[1] ** 2) / (SECTIONS - 1), 1e-300)
    reach = stdtrit(np.maximum(freedom, SECTIONS - 1), (1 + CONFIDENCE) / 2) * np.sqrt(total)
    middle = np.log(measured[1] / measured[0])
    low, high = np.exp(middle - reach) - 1, np.exp(middle + reach) - 1
    return measured, low, high


def _squared_errors(
    values: NDArray[np.float64], matrix: NDArray[np.float64], percents: list[float]
) -> NDArray[np.float64]:
    """Return the squared standard error of the logarithm of each percentile of a run: (percents,)."""
    sections = np.stack([part.sum(axis=0) for part in np.array_split(matrix, SECTIONS)])
    whole = np.log(_percentiles(values, matrix.sum(axis=0)[None, :], percents))
    spread = (np.log(_percentiles(values, sections, percents)) - whole) ** 2
    result: NDArray[np.float64] = spread.sum(axis=0) / (SECTIONS - 1) / SECTIONS
    return result


def _resampled(matrix: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return counts by round and value, (ROUNDS, values); a round draws as many windows in moving blocks."""
    windows = len(matrix)
    block = max(1, round(windows ** (1 / 3)))
    drawn = np.empty((ROUNDS, matrix.shape[1]))
    for chunk in range(0, ROUNDS, 100):
        weights = np.zeros((100, windows))
        starts = rng.integers(windows, size=(100, -(-windows // block)))
        places = ((starts[:, :, None] + np.arange(block)) % windows).reshape(100, -1)[:, :windows]
        for row, place in zip(weights, places, strict=True):
            np.add.at(row, place, 1)
        drawn[chunk : chunk + 100] = weights @ matrix
    return drawn


def _percentiles(
    values: NDArray[np.float64], counts: NDArray[np.float64], percents: list[float]
) -> NDArray[np.float64]:
    """Return milliseconds by round and percentile: (rounds, percents)."""
    below = np.cumsum(counts, axis=1)
    wanted = ranks(np.array(percents), below[:, -1:])  # (rounds, percents)
    places = np.stack([np.searchsorted(row, want) for row, want in zip(below, wanted, strict=True)])
    result: NDArray[np.float64] = values[np.minimum(places, len(values) - 1)]
    return result
