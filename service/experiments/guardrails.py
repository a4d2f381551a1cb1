"""Watches the guardrails, with a margin for chance, and takes an arm that breaks one back to control.

What is judged are the requests of the last minute on all replicas (windows.py).

Failed and slow requests are compared with control's of the same minute: overload slows both, and taking an
arm back would not end it. Units are drawn at random, so both arms meet the same load.

A guardrail is checked every second, so chance would sooner or later break a plain comparison with the limit.
A share of failed or slow requests breaks its limit only if an arm exactly at the limit would show so many
with a probability below `CHANCE`. The test is Chernoff's bound n·KL(k/n ‖ limit) > ln(1/CHANCE) (Hoeffding
1963). Against control, whose own share is not exact, the bounds of both arms are added.

Requests of one unit are not independent. So a share must break its limit without the unit that failed most
often, too: no single caller takes an arm back for everybody. Control is taken without its own such unit, so
that no single caller hides an arm that fails. Scores are compared by unit (windows.py).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from headroom.service.experiments.definition import Guardrails
from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.log import Entry
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.windows import Counts

WATCH_SECONDS = 1.0

GUARDRAILS = ("error_rate", "p99", "score_shift")

CHANCE = 1e-4
"""The probability with which an arm exactly at a limit may break it, at most."""

# The sum of two independent exponential variables exceeds x with probability (1 + x) · exp(−x).
_BOTH_BY_CHANCE = 11.757

SLOW_SHARE = 0.01
"""The share of requests that may be slow, since the limit is one of the 99th percentile."""

FAILING_SHARE = 0.5
"""While control has fewer than `min_requests` requests, and not all failed, an arm breaks its limit if more
than this share of its own did."""
SHIFT_BINS = 10
# If nothing differs, PSI · nm/(n+m) of n and m units is about χ² with SHIFT_BINS − 1 degrees of freedom.
# This is the 1 − CHANCE quantile of that distribution.
_SHIFT_BY_CHANCE = 33.72


class GuardrailWatcher:
    """Checks the guardrails, and rolls arms back. Runs on the event loop.

    counts: returns the counts of an experiment's arm.
    """

    def __init__(self, ledger: Ledger, counts: Callable[[str, str], Counts]) -> None:
        self._ledger = ledger
        self._counts = counts

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.watch()

    def watch(self) -> None:
        """Check every experiment once, also if one raises an error; raise the last one at the end."""
        failure = None
        for experiment in self._ledger.experiments.values():
            try:
                if experiment.is_running:
                    self._watch(experiment)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _watch(self, experiment: Experiment) -> None:
        config = experiment.config
        control = self._counts(config.name, config.control)
        for arm in config.treatments:
            if arm in experiment.rolled_back:
                continue
            counts = self._counts(config.name, arm)
            breach = find_breach(counts, control, config.guardrails, is_interleaved=config.is_interleaved)
            if breach is not None:
                guardrail, detail = breach
                now = self._ledger.clock()
                self._ledger.roll_back(
                    Entry("rollback", now, "guardrail", config.name, arm=arm, reason=guardrail, detail=detail)
                )


def find_breach(
    counts: Counts, control: Counts, limits: Guardrails, *, is_interleaved: bool = False
) -> tuple[str, str] | None:
    """Return the first guardrail that an arm's last minute breaks, and how, as a sentence for people."""
    if counts.requests < limits.min_requests:
        return None
    details = {
        "error_rate": _errors(counts, control, limits),
        "p99": _slow(counts, None if is_interleaved else control, limits),
        "score_shift": _shifted(counts, control, limits),
    }
    return next(((name, detail) for name, detail in details.items() if detail is not None), None)


def _errors(counts: Counts, control: Counts, limits: Guardrails) -> str | None:
    """Say how the errors break their limit. An arm does not cause the errors that control has, too."""
    if limits.error_rate is None:
        return None
    exceeded = _exceeded_limit(
        (counts.errors, counts.requests, counts.errors_by_unit),
        (control.errors, control.requests, control.errors_by_unit),
        limits.error_rate,
        limits.min_requests,
    )
    return None if exceeded is None else f"{counts.errors} of {_requests(counts)} failed; {exceeded}"


def _slow(counts: Counts, control: Counts | None, limits: Guardrails) -> str | None:
    """Say how the times break their limit. An arm does not cause the waiting that control has, too.

    control: None if both arms take the same time, as those of an interleaved experiment do.
    """
    if limits.p99_ms is None:
        return None
    of_arm = (counts.slow, counts.requests, counts.slow_by_unit)
    exceeded = None
    if control is not None:
        exceeded = _exceeded_limit(of_arm, (control.slow, control.requests, control.slow_by_unit), SLOW_SHARE)
    elif _also_without_one(partial(exceeds, limit=SLOW_SHARE), of_arm):
        exceeded = (
            f"the limit is {SLOW_SHARE:g}, without a comparison with control, because both arms are scored "
            "together"
        )
    if exceeded is None:
        return None
    return f"{counts.slow} of {_requests(counts)} took longer than {limits.p99_ms:g} ms; {exceeded}"


def _shifted(counts: Counts, control: Counts, limits: Guardrails) -> str | None:
    """Say how the scores break their limit."""
    units = len(counts.bins)
    control_units = len(control.bins)
    if limits.score_shift is None or min(units, control_units) < limits.min_requests:
        return None
    shift = population_stability(counts.scores, control.scores)
    by_chance = _SHIFT_BY_CHANCE * (1 / units + 1 / control_units)
    if shift <= limits.score_shift + by_chance:
        return None
    return (
        f"the scores' stability index against the control's is {shift:.2f}; the limit is "
        f"{limits.score_shift:g} and {by_chance:.2f} for chance"
    )


def exceeds(count: int, total: int, limit: float) -> bool:
    """Return whether `count` of `total` is more than chance makes of a share of `limit`."""
    share = count / total if total else 0.0
    return share > limit and total * _divergence(share, limit) > -math.log(CHANCE)


def exceeds_other(count: int, total: int, other_count: int, other_total: int, margin: float) -> bool:
    """Return whether a share is more than chance makes of another share and a margin.

    At its true share, each Chernoff bound exceeds x with a probability of at most exp(−x), as an exponential
    variable does. The sum of the two is judged, at the true share of the other that explains both best.
    """
    share = count / total if total else 0.0
    low = other_count / other_total if other_total else 0.0
    high = share - margin
    if high <= low:
        return False

    def evidence(true_share: float) -> float:
        return total * _divergence(share, true_share + margin) + other_total * _divergence(low, true_share)

    return _smallest(evidence, low, high) > _BOTH_BY_CHANCE


def population_stability(scores: Floats, reference: Floats) -> float:
    """Return the population stability index Σ (p − q) ln(p / q) over tenths of the reference.

    scores, reference: units by the same fine bins. 0 means alike; 0.1 is usually called small and 0.25
    large. Half a unit is added to each bin, so that the index of an empty bin stays finite.
    """
    total = float(reference.sum())
    if not total or not scores.sum():
        return 0.0
    # A fine bin goes to the tenth that holds its middle, so that equal scores stay together.
    middles = np.cumsum(reference) - reference / 2
    tenth = np.minimum((middles * SHIFT_BINS / total).astype(np.int64), SHIFT_BINS - 1)
    p = np.bincount(tenth, weights=scores, minlength=SHIFT_BINS) + 0.5
    q = np.bincount(tenth, weights=reference, minlength=SHIFT_BINS) + 0.5
    p /= p.sum()
    q /= q.sum()
    return float(((p - q) * np.log(p / q)).sum())


WindowCounts = tuple[int, int, Counter[int]]
"""How many of how many requests went wrong in one way, and how many of each unit by its mark."""


def _exceeded_limit(
    arm: WindowCounts, control: WindowCounts, margin: float, min_requests: int = 0
) -> str | None:
    """Return the limit that an arm's share exceeds, with and without the unit that has most of it; else None.

    It is control's share, without control's own such unit, and the margin; FAILING_SHARE if control has fewer
    than `min_requests`, and not all failed. (A slow minute says nothing without a control: overload slows
    all.)
    """
    control_count, control_total = _without_one(control)

    def breaks(count: int, total: int) -> bool:
        return exceeds_other(count, total, control_count, control_total, margin)

    if _also_without_one(breaks, arm):
        usual = control_count / control_total
        return f"the limit is {margin:g} over the control's {usual:.3g}"
    count, total, _ = control
    has_few = total < min_requests and (count < total or not total)
    if has_few and _also_without_one(partial(exceeds, limit=FAILING_SHARE), arm):
        return f"the limit is {FAILING_SHARE:g} while the control has only {total} requests"
    return None


def _also_without_one(breaks: Callable[[int, int], bool], tally: WindowCounts) -> bool:
    """Return whether a count of a total breaks a limit, with and without the unit that has most of it."""
    count, total, _ = tally
    return breaks(count, total) and breaks(*_without_one(tally))


def _without_one(tally: WindowCounts) -> tuple[int, int]:
    """Return a count and its total without the unit that has most of the count."""
    count, total, by_unit = tally
    largest = max(by_unit.values(), default=0)
    return count - largest, total - largest


def _requests(counts: Counts) -> str:
    """Return how many requests are judged, and on how many replicas if these are several."""
    where = f" on {counts.replicas} replicas" if counts.replicas > 1 else ""
    return f"{counts.requests} requests{where}"


def _divergence(share: float, limit: float) -> float:
    """Return the Kullback–Leibler divergence of two coins. limit: 0 to 1, and not 0 for a share above 0."""
    divergence = 0.0
    for observed, expected in ((share, limit), (1 - share, 1 - limit)):
        if observed > 0:
            divergence += observed * math.log(observed / expected) if expected > 0 else math.inf
    return divergence


def _smallest(convex: Callable[[float], float], low: float, high: float) -> float:
    """Return the smallest value of a convex function between two points, by ternary search."""
    for _ in range(60):
        third = (high - low) / 3
        if convex(low + third) < convex(high - third):
            high -= third
        else:
            low += third
    return convex((low + high) / 2)
