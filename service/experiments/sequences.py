"""Confidence sequences: intervals that hold at all looks together, so that looking at any time is valid.

They are the asymptotic ones of Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central limit
theory and asymptotic confidence sequences" (https://arxiv.org/abs/2103.06476), with the Gaussian mixture
boundary of Robbins: for an estimate of standard error s after t units,

    estimate ± s · sqrt(2 (tρ² + 1) / (tρ²) · log(sqrt(tρ² + 1) / α)).

Here t counts the units of both arms: a difference of two means is itself a mean over all their units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from service.experiments.estimates import Estimate, Floats

MIN_UNITS = 30
"""An arm with fewer units gets no interval, because the theory is asymptotic."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The half width of the intervals, in standard errors.

    alpha: upper limit of the chance that any of the intervals misses the truth.
    planned_units: the number of units at which the intervals are narrowest, compared with a single look.
    """

    alpha: float
    planned_units: float

    @property
    def rho_squared(self) -> float:
        """The mixture's variance that is best at `planned_units` (end of section 2 of the paper)."""
        log = -2 * math.log(self.alpha)
        return (log + math.log(log + 1)) / self.planned_units

    def multiplier(self, units: ArrayLike) -> Floats:
        """Return the interval's half width after a number of units, in standard errors."""
        scaled = np.asarray(units, np.float64) * self.rho_squared
        return np.sqrt(2 * (scaled + 1) / scaled * np.log(np.sqrt(scaled + 1) / self.alpha))

    def p_value(self, z: ArrayLike, units: ArrayLike) -> Floats:
        """Return the anytime-valid p-value of an estimate that is z standard errors from the hypothesis."""
        scaled = np.asarray(units, np.float64) * self.rho_squared
        log = 0.5 * np.log(scaled + 1) - np.square(z) * scaled / (2 * (scaled + 1))
        return np.exp(np.minimum(0.0, log))


@dataclass(frozen=True, slots=True)
class Contrast:
    """An arm against control at one look. low and high are NaN if there is no interval.

    difference: arm minus control. relative: arm over control minus 1, by Fieller's method, so that a relative
    margin is inside the interval exactly when the test of that margin does not reject.
    """

    difference: Floats
    low: Floats
    high: Floats
    relative: Floats
    relative_low: Floats
    relative_high: Floats
    p_value: Floats


def contrast(
    control: Estimate, arm: Estimate, pooled: Estimate, boundary: Boundary, *, ratio: float = 1.0
) -> Contrast:
    """Return the sequence's interval of arm − ratio · control at this look. All arrays have one shape.

    pooled: the same estimate from the units of all arms. If these vary more than the two arms do, their
    variance is used: a small arm that has none of the rare events by chance would look too certain.
    ratio: 1 plus or minus a margin that is a share of control's value. The margin is in Fieller's interval
        exactly if 0 is in the one of this contrast, which also exists if control's value is near 0. It is NaN
        if control's value is clearly below 0, because a share of it means nothing.
    """
    spread = pooled.variance * pooled.units
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = np.array([control.variance, arm.variance])
        of_all = np.array([spread / control.units, spread / arm.units])
        of_control, of_arm = np.where(of_all.sum(0) > variances.sum(0), of_all, variances)
        enough = (np.minimum(control.units, arm.units) >= MIN_UNITS) & (of_control + of_arm > 0)
        units = np.maximum(control.units + arm.units, 1)
        width = np.where(enough, boundary.multiplier(units), np.nan)
        difference = arm.value - ratio * control.value
        error = np.sqrt(of_arm + ratio**2 * of_control)
        radius = width * error
        if ratio != 1:
            is_below = control.value + width * np.sqrt(of_control) < 0
            radius = np.where(is_below, np.nan, radius)
        # Fieller: all r − 1 for which arm − r · control is within `width` standard errors of 0. There is no
        # bounded interval unless control's value is clearly above 0.
        a = control.value**2 - width**2 * of_control
        b = arm.value * control.value
        root = np.sqrt(np.maximum(b**2 - a * (arm.value**2 - width**2 * of_arm), 0.0))
        is_bounded = (a > 0) & (control.value > 0)
        return Contrast(
            difference=difference,
            low=difference - radius,
            high=difference + radius,
            relative=np.where(control.value > 0, (arm.value - control.value) / control.value, np.nan),
            relative_low=np.where(is_bounded, (b - root) / a - 1, np.nan),
            relative_high=np.where(is_bounded, (b + root) / a - 1, np.nan),
            p_value=np.where(enough, boundary.p_value(difference / error, units), 1.0),
        )


def one_sample(mean: Estimate, boundary: Boundary, largest: float) -> tuple[Floats, Floats]:
    """Return the interval of a plain mean of bounded values; NaN if there is none.

    largest: the largest |value| that is possible. Values of up to log(1/α) / n of all units may have been
    missed by chance after n units. The interval is so much wider as they would move the mean, as an empirical
    Bernstein interval is.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        radius = boundary.multiplier(np.maximum(mean.units, 1)) * np.sqrt(mean.variance)
        radius -= math.log(boundary.alpha) / mean.units * (largest + np.abs(mean.value))
    radius = np.where((mean.units >= MIN_UNITS) & (mean.variance > 0), radius, np.nan)
    return mean.value - radius, mean.value + radius
