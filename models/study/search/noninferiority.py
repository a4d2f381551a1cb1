"""Tests that a mask is worse by less than a margin: one-sided cluster-bootstrap bounds, from many heads to
few."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import norm

from models.quality.bootstrap import Draws, Estimate
from models.quality.evaluation import Evaluation
from models.study.statistics import Resamples

TESTED_METRICS = ("qwk", "ndcg10")
"""A mask must be non-inferior in both: an intersection–union test, which needs no correction (Berger
1982)."""

POWER = 0.8
"""The power that `queries_needed` gives: the chance that a harmless mask passes."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One metric's change under a mask, on the same queries as the intact model.

    delta: masked minus intact; bound: its one-sided lower confidence bound; standard_error: by bootstrap.
    power: the chance that a mask that changes nothing on average passes, at the same standard error.
    queries_needed: how many queries give a power of POWER. If fewer than MIN_TESTED queries have titles of
    different grades, nothing can be tested: the bound is −inf, the power 0 and queries_needed None.
    """

    delta: float
    bound: float
    standard_error: float
    power: float
    queries_needed: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one mask. losses: by metric. tested: False if an earlier mask of the sequence failed."""

    losses: dict[str, Loss]
    passed: bool
    tested: bool

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        if not self.tested:
            return "not tested"
        if self.passed:
            return "passed"
        too_few = any(loss.queries_needed is None for loss in self.losses.values())
        return "too few queries" if too_few else "failed"


def compare(
    resamples: Resamples,
    whole: dict[str, Draws],
    masked: Evaluation,
    *,
    margin: float,
    alpha: float,
    queries: int,
) -> dict[str, Loss]:
    """Return the loss in each of TESTED_METRICS, with bounds at the one-sided level alpha.

    whole: the draws of the intact model. queries: how many there are.
    """
    after = resamples.draws(masked)
    changes = {metric: resamples.estimate(after[metric] - whole[metric]) for metric in TESTED_METRICS}
    return {metric: _loss(change, margin, alpha, queries) for metric, change in changes.items()}


def fixed_sequence(losses: Sequence[dict[str, Loss]], margin: float) -> list[Verdict]:
    """Test masks in the order given and stop at the first that fails.

    The order was fixed before the held-out queries were looked at. Each test may therefore use the whole
    error rate, and the chance that any mask worse than the margin passes is at most that rate (Maurer et al.
    1995). A bound exactly at −margin does not pass.
    """
    verdicts: list[Verdict] = []
    for by_metric in losses:
        tested = all(verdict.passed for verdict in verdicts)
        passed = tested and all(loss.bound > -margin for loss in by_metric.values())
        verdicts.append(Verdict(by_metric, passed, tested))
    return verdicts


def _loss(change: Estimate, margin: float, alpha: float, queries: int) -> Loss:
    bound = change.bounds(alpha).low
    if not math.isfinite(bound):
        return Loss(change.value, -math.inf, math.inf, 0.0, None)  # too few queries
    z = float(norm.ppf(1 - alpha))
    power = float(norm.cdf(margin / change.error - z)) if change.error > 0 else 1.0
    needed = 0
    if margin > 0:
        needed = math.ceil(queries * (change.error * (z + float(norm.ppf(POWER))) / margin) ** 2)
    return Loss(change.value, bound, change.error, power, needed)
