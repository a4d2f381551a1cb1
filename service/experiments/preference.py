"""Judges an interleaving experiment: which arm's titles the units prefer, from −1 (control's) to 1.

A unit's value is (clicks on the treatment's titles − clicks on control's) / (both), over its lists that
count; a unit without a click on a team's title has none. The estimate is the mean of the units' values, so a
unit counts once, however often it clicks. Its interval is a confidence sequence, as in `estimates`: it holds
at any look.
"""

import math
from dataclasses import dataclass

from headroom.service.descriptions import documented
from headroom.service.experiments.estimates import MIN_UNITS, Boundary

UNSEEN_UNITS = 2
"""Units added to the variance, one at −1 and one at 1. Without them, units that all clicked one arm's titles
only would have no variance, and an interval without width."""


@dataclass(frozen=True, slots=True)
class ClickSums:
    """One metric's clicks, as the store adds them up.

    units: those with a value. total, squares: sums over them of the value and of its square.
    wins, losses, ties: units with a value above, below and at 0; they add up to `units`.
    impressions: lists that count. differing: those in which a title belongs to a team. viewers: units that
    saw a list that counts.
    """

    units: int = 0
    total: float = 0.0
    squares: float = 0.0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    impressions: int = 0
    differing: int = 0
    viewers: int = 0


@documented
@dataclass(frozen=True, slots=True)
class Preference:
    """Which arm's titles the units clicked. Above 0, the treatment is preferred."""

    estimate: float
    """Mean over units of (clicks on the treatment's titles − on control's) / (both); 0 without any."""
    interval: tuple[float, float]
    """Both ends of the estimate's confidence sequence, in [−1, 1]; all of it for fewer than 30 units."""
    p: float
    """Anytime-valid p-value of the hypothesis that no arm is preferred."""
    units: int
    """Units that clicked a title that belongs to an arm."""
    impressions: int
    """Lists shown."""
    differing: int
    """Lists in which the arms' orders differ: a title belongs to one of them."""
    wins: int
    """Units that clicked more of the treatment's titles than of control's."""
    losses: int
    """Units that clicked more of control's titles than of the treatment's."""
    ties: int
    """Units that clicked as many of each."""


def preference(tally: ClickSums, *, planned_units: float, alpha: float) -> Preference:
    """Return the judgement at this look.

    planned_units: the number of units at which the interval is narrowest, compared with a single look.
    alpha: upper limit of the chance that any look's interval misses the truth.
    """
    estimate = tally.total / tally.units if tally.units else 0.0
    low = -1.0
    high = 1.0
    p = 1.0
    if tally.units >= MIN_UNITS:
        boundary = Boundary(alpha, planned_units)
        error = _standard_error(tally)
        radius = float(boundary.multiplier(tally.units)) * error
        low = max(low, estimate - radius)
        high = min(high, estimate + radius)
        p = float(boundary.p_value(estimate / error, tally.units))
    return Preference(
        estimate=estimate,
        interval=(low, high),
        p=p,
        units=tally.units,
        impressions=tally.impressions,
        differing=tally.differing,
        wins=tally.wins,
        losses=tally.losses,
        ties=tally.ties,
    )


def _standard_error(tally: ClickSums) -> float:
    """Return the standard error of the mean value, never 0."""
    units = tally.units + UNSEEN_UNITS
    mean = tally.total / units
    variance = (tally.squares + UNSEEN_UNITS) / units - mean**2
    return math.sqrt(variance / tally.units)
