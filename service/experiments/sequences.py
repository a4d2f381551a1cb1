"""Confidence sequences: intervals that hold at all looks together, so that looking at any time is valid.

They are the asymptotic ones of Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central limit
theory and asymptotic confidence sequences" (https://arxiv.org/abs/2103.06476), with the Gaussian mixture
boundary of Robbins: for an estimate of standard error s after t units,

    estimate ± s · sqrt(2 (tρ² + 1) / (tρ²) · log(sqrt(tρ² + 1) / α)).

Here t counts the units of both arms: a difference of two means is itself a mean over all their units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


def contrast(control: Estimate, arm: Estimate, pooled: Estimate, boundary: Boundary) -> Contrast:
    """Return the sequence's interval at this look. All arrays have one shape.

    pooled: the same estimate from the units of all arms. If these vary more than the two arms do, their
    variance is used: a small arm that has none of the rare events by chance would look too certain.
    """
    units = control.units + arm.units
    control, arm = _with_larger_variances(control, arm, pooled)
    variance = control.variance + arm.variance
    width = _width(control, arm, boundary)
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = arm.value - control.value
        radius = width * np.sqrt(variance)
        relative_low, relative_high = _fieller(control, arm, width)
        p_value = boundary.p_value(difference / np.sqrt(variance), np.maximum(units, 1))
        return Contrast(
            difference=difference,
            low=difference - radius,
            high=difference + radius,
            relative=np.where(control.value > 0, difference / control.value, np.nan),
            relative_low=relative_low,
            relative_high=relative_high,
            p_value=np.where(np.isfinite(width), p_value, 1.0),
        )


def margin_gap(
    control: Estimate, arm: Estimate, pooled: Estimate, boundary: Boundary, ratio: float
) -> tuple[Floats, Floats]:
    """Return the interval of arm − ratio · control, which decides on a margin relative to control's value.

    The margin is in Fieller's interval exactly if 0 is in this one. But this one also exists if control's
    value is near 0. It is NaN if control's value is clearly below 0, because a share of it means nothing.
    ratio: 1 plus or minus the margin.
    """
    control, arm = _with_larger_variances(control, arm, pooled)
    width = _width(control, arm, boundary)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = arm.value - ratio * control.value
        radius = width * np.sqrt(arm.variance + ratio**2 * control.variance)
        radius = np.where(control.value + width * np.sqrt(control.variance) < 0, np.nan, radius)
    return gap - radius, gap + radius


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


def _width(control: Estimate, arm: Estimate, boundary: Boundary) -> Floats:
    """Return the half width of an interval in standard errors; NaN if there are too few units for one."""
    enough = (np.minimum(control.units, arm.units) >= MIN_UNITS) & (control.variance + arm.variance > 0)
    return np.where(enough, boundary.multiplier(np.maximum(control.units + arm.units, 1)), np.nan)


def _with_larger_variances(control: Estimate, arm: Estimate, pooled: Estimate) -> tuple[Estimate, Estimate]:
    """Return both with the variances from their own units or, if these vary more, from all units."""
    spread = pooled.variance * pooled.units
    with np.errstate(invalid="ignore", divide="ignore"):
        from_all = (spread / control.units, spread / arm.units)
    larger = sum(from_all) > control.variance + arm.variance
    return (
        replace(control, variance=np.where(larger, from_all[0], control.variance)),
        replace(arm, variance=np.where(larger, from_all[1], arm.variance)),
    )


def _fieller(control: Estimate, arm: Estimate, width: Floats) -> tuple[Floats, Floats]:
    """Return the ends of all r − 1 for which arm − r · control is within `width` standard errors of 0.

    They are NaN if control's mean is not clearly above 0, because then there is no bounded interval.
    """
    square = width**2
    a = control.value**2 - square * control.variance
    b = arm.value * control.value
    root = np.sqrt(np.maximum(b**2 - a * (arm.value**2 - square * arm.variance), 0.0))
    bounded = (a > 0) & (control.value > 0)
    return (
        np.where(bounded, (b - root) / a - 1, np.nan),
        np.where(bounded, (b + root) / a - 1, np.nan),
    )
