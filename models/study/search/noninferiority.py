"""Is a pruned model at most a margin worse? One-sided cluster-bootstrap bounds, tested from many heads to
few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import norm

from models.quality.bootstrap import Draws, Estimate
from models.quality.evaluation import Evaluation
from models.study.statistics import Resamples

METRICS = ("qwk", "ndcg10")
"""A mask must be non-inferior in both: an intersection–union test, which needs no correction (Berger
1982)."""

POWER = 0.8
"""The chance of finding a harmless mask that the number of queries asked for is meant to give."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One metric's change under a mask, on the same queries as the intact model.

    delta: masked minus intact. bound: its one-sided lower confidence bound. error: its bootstrap standard
    error. power: the chance that the bound clears the margin when the mask changes nothing on average, if
    the standard error is the same then. queries_needed: how many give a power of 0.8.
    """

    delta: float
    bound: float
    error: float
    power: float
    queries_needed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one mask passed. losses: by metric. tested: False where an earlier mask of the sequence had
    failed."""

    losses: dict[str, Loss]
    passed: bool
    tested: bool


def compare(
    resamples: Resamples,
    whole: dict[str, Draws],
    masked: Evaluation,
    *,
    margin: float,
    alpha: float,
    queries: int,
) -> dict[str, Loss]:
    """The loss in each of METRICS against the intact model's draws, with bounds at one-sided level alpha."""
    after = resamples.draws(masked)
    return {
        metric: _loss(resamples.estimate(after[metric] - whole[metric]), margin, alpha, queries)
        for metric in METRICS
    }


def fixed_sequence(losses: Sequence[dict[str, Loss]], margin: float) -> list[Verdict]:
    """Tests masks in the order given and stops at the first that fails.

    Because the order was fixed before the held-out queries were looked at, each test may use the whole error
    rate, and the chance that any mask worse than the margin passes is at most that (Maurer et al. 1995). A
    bound exactly at −margin does not pass.
    """
    verdicts: list[Verdict] = []
    for found in losses:
        tested = all(verdict.passed for verdict in verdicts)
        passed = tested and all(loss.bound > -margin for loss in found.values())
        verdicts.append(Verdict(found, passed, tested))
    return verdicts


def _loss(found: Estimate, margin: float, alpha: float, queries: int) -> Loss:
    bound = found.interval(1 - 2 * alpha).low
    if not math.isfinite(bound):
        return Loss(found.value, -math.inf, math.inf, 0.0, 0)
    z = float(norm.ppf(1 - alpha))
    power = float(norm.cdf(margin / found.error - z)) if found.error > 0 else 1.0
    needed = 0
    if margin > 0:
        needed = math.ceil(queries * (found.error * (z + float(norm.ppf(POWER))) / margin) ** 2)
    return Loss(found.value, bound, found.error, power, needed)
