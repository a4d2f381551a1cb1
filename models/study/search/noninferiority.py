"""Tests that a network is worse by less than a margin: one-sided cluster-bootstrap bounds, from large to
small."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import norm

from models.quality.bootstrap import Draws, Estimate
from models.quality.evaluation import Evaluation
from models.study.statistics import Resamples

TESTED_METRICS = ("qwk", "ndcg10")
"""A network must be non-inferior in both: an intersection–union test, which needs no correction (Berger
1982)."""

ERROR_RATE = 0.025
"""The chance that a network worse than the margin is chosen."""

POWER = 0.8
"""The power that `queries_needed` gives: the chance that a harmless network passes."""


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
    """The verdict on one network. loss: by metric. tested: False if an earlier one of the sequence failed."""

    passed: bool
    loss: dict[str, Loss]
    tested: bool

    @property
    def is_testable(self) -> bool:
        """Return whether there are queries enough."""
        return all(loss.queries_needed is not None for loss in self.loss.values())

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        if not self.is_testable:
            return "–"
        return ("passed" if self.passed else "failed") if self.tested else "not tested"


def compare(
    resamples: Resamples, whole: dict[str, Draws], masked: Evaluation, margin: float
) -> dict[str, Loss]:
    """Return the loss in each of TESTED_METRICS, with bounds at the one-sided level ERROR_RATE.

    whole: the draws of the intact model.
    """
    after = resamples.draws(masked)
    return {
        metric: _loss(resamples.estimate(after[metric] - whole[metric]), margin, resamples.queries)
        for metric in TESTED_METRICS
    }


def fixed_sequence(losses: Sequence[dict[str, Loss]], margin: float) -> list[Verdict]:
    """Test networks in the order given and stop at the first that fails.

    The order was fixed before the held-out queries were looked at. Each test may therefore use the whole
    error rate, and the chance that any network worse than the margin passes is at most that rate (Maurer et
    al. 1995). A bound exactly at −margin does not pass.
    """
    verdicts: list[Verdict] = []
    for by_metric in losses:
        tested = all(verdict.passed for verdict in verdicts)
        passed = tested and all(loss.bound > -margin for loss in by_metric.values())
        verdicts.append(Verdict(passed, by_metric, tested))
    return verdicts


def _loss(change: Estimate, margin: float, queries: int) -> Loss:
    bound = change.bounds(ERROR_RATE).low
    if not math.isfinite(bound):
        return Loss(change.value, -math.inf, math.inf, 0.0, None)  # too few queries
    z = float(norm.ppf(1 - ERROR_RATE))
    power = float(norm.cdf(margin / change.error - z)) if change.error > 0 else 1.0
    needed = math.ceil(queries * (change.error * (z + float(norm.ppf(POWER))) / margin) ** 2)
    return Loss(change.value, bound, change.error, power, needed)
