"""Two runs side by side: how far their percentiles differ, and how sure that is.

The interval comes from a bootstrap over stretches of time, not over requests: neighbouring requests share a
queue, so treating them as independent would make the interval far too narrow. Each run's windows are drawn
with replacement (moving blocks of neighbours), their histograms are added up, and the percentiles' ratio is
taken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import PlanError
from loadtest.histogram import Histogram
from loadtest.report import Report

PERCENTS = (50.0, 90.0, 99.0, 99.9)
GATED = ("p50", "p90", "p99")
"""What --fail-if-slower looks at."""

ROUNDS = 1000
CONFIDENCE = 0.95
LEAST_WINDOWS = 8
LEAST_BEYOND = 10
"""A percentile is compared when at least so many requests lie beyond it in both runs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One percentile of both runs. change: of b over a, 0.05 is 5 % slower; low, high: its 95 % interval."""

    percentile: str
    a_ms: float
    b_ms: float
    change: float
    low: float
    high: float

    def slower_than(self, share: float) -> bool:
        """Slower by more than `share`, and surely slower at all."""
        return self.change > share and self.low > 0


def compare(a: Report, b: Report, *, seed: int = 1) -> list[Difference]:
    """The differences that both runs are long enough for. Raises PlanError when there are none."""
    runs = [_windows(a, "the first run"), _windows(b, "the second run")]
    values = np.union1d(runs[0][0], runs[1][0])
    counts = [_aligned(values, *run) for run in runs]
    least = min(int(matrix.sum()) for matrix in counts)
    percents = [p for p in PERCENTS if least * (1 - p / 100) >= LEAST_BEYOND]
    if not percents:
        raise PlanError("the runs are too short to compare: even the median has too few requests beyond it")
    rng = np.random.default_rng(seed)
    measured = [_percentiles(values, matrix.sum(axis=0)[None, :], percents)[0] for matrix in counts]
    drawn = [_percentiles(values, _resampled(matrix, rng), percents) for matrix in counts]
    ratios = drawn[1] / drawn[0] - 1  # (ROUNDS, percents)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], axis=0)
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


def as_json(differences: list[Difference], a: Report, b: Report) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "schema": 1,
        "differences": [asdict(difference) for difference in differences],
        "rate": [report["rate"] for report in (a, b)],
        "errors": [report["requests"]["errors"] for report in (a, b)],
        "plans_differ_in": plans_differ_in(a, b),
    }


def plans_differ_in(a: Report, b: Report) -> list[str]:
    """Fields of the plans that are not the same, the address aside: a comparison across them needs care."""
    one, two = a["plan"], b["plan"]
    return sorted(
        name for name in one.keys() | two.keys() if name != "url" and one.get(name) != two.get(name)
    )


def _windows(report: Report, which: str) -> tuple[NDArray[np.float64], list[tuple[Any, Any]]]:
    """The values that occur, and (milliseconds, counts) of each window that is wholly inside the run."""
    series = report["series"]
    width, seconds = series["window_seconds"], report["seconds"]
    parts = [
        Histogram.decode(window["latency"]).counts()
        for window in series["windows"]
        if window["latency"] is not None and window["at"] + width <= seconds * (1 + 1e-9)
    ]
    if len(parts) < LEAST_WINDOWS:
        raise PlanError(
            f"{which} is too short to compare: {len(parts)} stretches of time, under {LEAST_WINDOWS}"
        )
    return np.unique(np.concatenate([values for values, _ in parts])), parts


def _aligned(
    values: NDArray[np.float64], _own: NDArray[np.float64], parts: list[tuple[Any, Any]]
) -> NDArray[np.float64]:
    """Counts by window and value: (windows, values)."""
    matrix = np.zeros((len(parts), len(values)))
    for row, (milliseconds, counts) in zip(matrix, parts, strict=True):
        row[np.searchsorted(values, milliseconds)] = counts
    return matrix


def _resampled(matrix: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Counts by round and value: (ROUNDS, values), each round a moving-block draw of as many windows."""
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
    """Milliseconds by round and percentile: (rounds, percents)."""
    below = np.cumsum(counts, axis=1)
    wanted = np.ceil(below[:, -1:] * np.array(percents) / 100)  # (rounds, percents)
    places = np.stack([np.searchsorted(row, want) for row, want in zip(below, wanted, strict=True)])
    result: NDArray[np.float64] = values[np.minimum(places, len(values) - 1)]
    return result
