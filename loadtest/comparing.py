"""Compares two runs: how much their percentiles and unanswered requests differ, with confidence intervals.

Neighbouring requests share a queue, so treating them as independent would make intervals far too narrow.
The errors come from sectioning (Asmussen and Glynn 2007, Stochastic Simulation, III.5a): a run is cut into
SECTIONS stretches, and the spread of their percentiles around the whole run's gives the error, with Student's
t for so few sections (Welch for the two runs). In simulated runs without a difference, whose speed wanders
from second to second, 92 to 96 % of the intervals held 0, at p50 and p99.
"""

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from scipy.special import stdtrit

from headroom.loadtest.histogram import Histogram
from headroom.loadtest.plan import PlanError
from headroom.loadtest.report import Report

MIN_REQUESTS = {50.0: 20, 90.0: 100, 99.0: 1_000, 99.9: 10_000}
"""The requests that both runs need by percentile: ten of them lie beyond it."""

GATED = ("p50", "p90", "p99")
"""The percentiles that --fail-if-slower checks."""

MORE_UNANSWERED = 0.01
"""How much more B leaves unanswered if --fail-if-slower fails; a tenth of what A leaves if that is more."""

CONFIDENCE = 0.95
MIN_WINDOWS = 8
SECTIONS = 5


Values = list[float]
"""A value in the whole run, and in each section."""


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
    """The shares of scheduled requests without a good answer, or with one that is not reranked."""

    a: float
    b: float

    @property
    def is_worse(self) -> bool:
        """Whether B answers fewer requests than chance and a busy machine explain."""
        return self.b - self.a > max(MORE_UNANSWERED, self.a / 10)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two runs. requests: of the run with fewer; too few for the percentiles left out."""

    differences: list[Difference]
    requests: int

    @property
    def left_out(self) -> dict[str, int]:
        """The requests that both runs need, by percentile that could not be compared."""
        return {f"p{p:g}": needed for p, needed in MIN_REQUESTS.items() if self.requests < needed}


def compare(a: Report, b: Report) -> Comparison:
    """Return the differences for which both runs are long enough. Raises PlanError if there are none."""
    runs = [_sections(a, "the first run"), _sections(b, "the second run")]
    requests = min(sum(map(len, sections)) for sections in runs)
    percents = [percent for percent, needed in MIN_REQUESTS.items() if requests >= needed]
    if not percents:
        raise PlanError("the runs are too short to compare: even the median has too few requests beyond it")
    first, second = ([Histogram.merged(sections), *sections] for sections in runs)
    differences = [
        difference(percent, _percentiles(first, percent), _percentiles(second, percent))
        for percent in percents
    ]
    return Comparison(differences, requests)


def _percentiles(histograms: list[Histogram], percent: float) -> Values:
    return [histogram.percentile_ms(percent) or 0.0 for histogram in histograms]


def difference(percent: float, a: Values, b: Values) -> Difference:
    """Return how much a percentile differs. a, b: its milliseconds in the whole run and in each section."""
    change, low, high = _interval([math.log(ms) for ms in a], [math.log(ms) for ms in b])
    return Difference(
        percentile=f"p{percent:g}",
        a_ms=a[0],
        b_ms=b[0],
        change=math.expm1(change),
        low=math.expm1(low),
        high=math.expm1(high),
    )


def unanswered(a: Report, b: Report) -> Unanswered:
    """Return the shares of unanswered requests."""
    return Unanswered(a=_unanswered_share(a), b=_unanswered_share(b))


def _unanswered_share(report: Report) -> float:
    requests = report["requests"]
    reranked = requests["ok"] - requests.get("unreranked", 0)
    return float(1 - reranked / max(1, requests["scheduled"]))


def _interval(a: Values, b: Values) -> tuple[float, float, float]:
    """Return how much b's value is above a's, and the ends of that difference's interval (Welch)."""
    errors = [_squared_error(values) for values in (a, b)]
    squares = sum(error**2 for error in errors) / (SECTIONS - 1)
    freedom = sum(errors) ** 2 / squares if squares else SECTIONS - 1
    change = b[0] - a[0]
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * math.sqrt(sum(errors)))
    return change, change - half, change + half


def _squared_error(values: Values) -> float:
    """Return the squared standard error of a run's value: the spread of its sections' values around it."""
    whole, *sections = values
    return sum((value - whole) ** 2 for value in sections) / SECTIONS / (SECTIONS - 1)


def as_json(compared: Comparison, failed: Unanswered, a: Report, b: Report) -> dict[str, Any]:
    """Return the comparison as plain values."""
    return {
        "schema": 1,
        "differences": [asdict(difference) for difference in compared.differences],
        "requests": compared.requests,
        "not_compared": [
            {"percentile": percentile, "requests_needed": needed}
            for percentile, needed in compared.left_out.items()
        ],
        "unanswered": asdict(failed),
        "rate": [report["rate"] for report in (a, b)],
        "errors": [report["requests"]["errors"] for report in (a, b)],
        "plans_differ_in": plans_differ_in(a, b),
    }


def plans_differ_in(a: Report, b: Report) -> list[str]:
    """Return the fields, except the address, in which the plans differ, so that the user can judge them."""
    one = a["plan"]
    two = b["plan"]
    return sorted(
        name for name in one.keys() | two.keys() if name != "url" and one.get(name) != two.get(name)
    )


def _sections(report: Report, which: str) -> list[Histogram]:
    """Return the latencies of each section, from the windows that lie wholly inside the run."""
    series = report["series"]
    width = series["window_seconds"]
    seconds = report["seconds"]
    windows = [
        Histogram.decode(window["latency"])
        for window in series["windows"]
        if window["latency"] is not None and window["at"] + width <= seconds * (1 + 1e-9)
    ]
    if len(windows) < MIN_WINDOWS:
        raise PlanError(
            f"{which} is too short to compare: {len(windows)} stretches of time, under {MIN_WINDOWS}"
        )
    borders = [len(windows) * number // SECTIONS for number in range(SECTIONS + 1)]
    return [Histogram.merged(windows[start:end]) for start, end in pairwise(borders)]
