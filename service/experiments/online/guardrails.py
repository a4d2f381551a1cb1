"""Decides whether an arm breaks a guardrail, with a margin for chance.

A guardrail is checked every second, so chance would sooner or later break a plain comparison with the limit.
A share of failed or slow requests breaks its limit only if an arm exactly at the limit would show so many
with a probability below `CHANCE`. The test is Chernoff's bound n·KL(k/n ‖ limit) > ln(1/CHANCE) (Hoeffding
1963).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.experiments.definition.config import Guardrails
from service.experiments.online.window import Counts

CHANCE = 1e-4
SHIFT_BINS = 10
# If nothing differs, PSI · nm/(n+m) is about χ² with SHIFT_BINS − 1 degrees of freedom.
# This is the 1 − CHANCE quantile of that distribution.
_SHIFT_BY_CHANCE = 33.72


@dataclass(frozen=True, slots=True)
class Breach:
    """A guardrail that an arm broke. `detail` is one sentence for people."""

    arm: str
    guardrail: str
    detail: str


def find_breach(arm: str, counts: Counts, control: Counts, limits: Guardrails) -> Breach | None:
    """Return the first guardrail that an arm's window breaks, if any. The guard checks the sample ratio."""
    if counts.requests < limits.min_requests:
        return None
    if limits.error_rate is not None:
        # The arm does not cause the control's own errors.
        usual = control.errors / control.requests if control.requests else 0.0
        if exceeds(counts.errors, counts.requests, limits.error_rate + usual):
            return Breach(
                arm,
                "error_rate",
                f"{counts.errors} of {counts.requests} requests failed; the limit is {limits.error_rate:g} "
                f"over the control's {usual:.3g}",
            )
    if limits.p99_ms is not None and exceeds(counts.slow, counts.requests, 0.01):
        return Breach(
            arm,
            "p99",
            f"{counts.slow} of {counts.requests} requests took longer than {limits.p99_ms:g} ms; "
            "the limit is 1 in 100",
        )
    if limits.score_shift is not None and control.requests >= limits.min_requests:
        shift = population_stability(counts.scores, control.scores)
        by_chance = _SHIFT_BY_CHANCE * (1 / counts.requests + 1 / control.requests)
        if shift > limits.score_shift + by_chance:
            return Breach(
                arm,
                "score_shift",
                f"the scores' stability index against the control's is {shift:.2f}; the limit is "
                f"{limits.score_shift:g} and {by_chance:.2f} for chance",
            )
    return None


def exceeds(count: int, total: int, limit: float) -> bool:
    """Return whether `count` of `total` is more than chance makes of a share of `limit`."""
    share = count / total if total else 0.0
    if share <= limit:
        return False
    if limit >= 1:
        return False
    divergence = share * math.log(share / limit)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - limit))
    return total * divergence > -math.log(CHANCE)


def population_stability(scores: NDArray[np.int64], reference: NDArray[np.int64]) -> float:
    """Return the population stability index Σ (p − q) ln(p / q) over tenths of the reference.

    scores, reference: counts by the same fine bins. 0 means alike; 0.1 is usually called small and 0.25
    large. Half a pair is added to each bin, so that the index of an empty bin stays finite.
    """
    total = int(reference.sum())
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
