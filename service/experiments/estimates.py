"""Estimates a metric's value and its variance from the moments of the units: means, ratios, CUPED.

Their intervals are confidence sequences, which hold at all looks together, so that looking at any time is
valid. They are the asymptotic ones of Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central
limit theory and asymptotic confidence sequences" (https://arxiv.org/abs/2103.06476), with the Gaussian
mixture boundary of Robbins: for an estimate of standard error s after t units,

    estimate ± s · sqrt(2 (tρ² + 1) / (tρ²) · log(sqrt(tρ² + 1) / α)).

Here t counts the units of both arms: a difference of two means is itself a mean over all their units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""

VALUE, DENOMINATOR, COVARIATE = range(3)
"""The three numbers of a unit. A number that a metric lacks is 0."""

ROUNDING = 1e-12
"""A spread or a mean smaller than this share of its terms is rounding: units are alike, or the mean is 0."""

MIN_UNITS = 30
"""An arm with fewer units gets no interval, because the theory is asymptotic."""

UNSEEN_UNITS = 2
"""Units that are added to the variance of bounded values, half of them at each bound."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of any number of units. Leading axes are experiments that are computed at once.

    units: (...,). mean: (..., 3). scatter: (..., 3, 3), sums of products of deviations from the mean.
    """

    units: Floats
    mean: Floats
    scatter: Floats

    @classmethod
    def of(cls, numbers: Floats) -> Moments:
        """Return the moments of units. numbers: (..., units, 3), the three numbers of each.

        A mean that is 0 but for rounding is 0, so that a ratio over it has no value.
        """
        units = numbers.shape[-2]
        mean = numbers.sum(-2) / max(units, 1)
        mean = np.where(np.abs(mean) <= ROUNDING * np.abs(numbers).sum(-2) / max(units, 1), 0.0, mean)
        deviations = numbers - mean[..., None, :]
        scatter = np.einsum("...ui,...uj->...ij", deviations, deviations)
        return cls(np.full(numbers.shape[:-2], float(units)), mean, scatter)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of units (Chan, Golub & LeVeque 1983)."""
        units = self.units + other.units
        share = other.units / np.maximum(units, 1)
        difference = other.mean - self.mean
        between = (self.units * share)[..., None, None] * difference[..., :, None] * difference[..., None, :]
        return Moments(
            units, self.mean + difference * share[..., None], self.scatter + other.scatter + between
        )

    @property
    def covariance(self) -> Floats:
        """The unbiased estimate, (..., 3, 3); NaN for fewer than two units."""
        freedom = np.where(self.units > 1, self.units - 1, np.nan)
        return np.asarray(self.scatter / freedom[..., None, None])


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate for one arm, or for the arms of many experiments at once. All arrays have one shape.

    variance: the squared standard error of `value`, which falls as one over units.
    """

    value: Floats
    variance: Floats
    units: Floats


def estimate(arm: Moments, pooled: Moments, *, ratio: bool = False, adjusted: bool = False) -> Estimate:
    """Return the mean of VALUE, or that mean divided by the mean of DENOMINATOR.

    pooled: the moments of all arms together, for the slope that the arms share.
    ratio: the estimate is a ratio, linearised at the arm's own means (delta method).
    adjusted: VALUE is corrected for COVARIATE (CUPED; Deng, Xu, Kohavi & Walker 2013) by the slope over all
        arms times the distance of the arm's mean covariate from that of all arms.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = _weights(arm, ratio)
        value = np.where(arm.units > 0, arm.mean[..., VALUE], np.nan)
        if ratio:
            value = value / arm.mean[..., DENOMINATOR]
        if adjusted:
            slope = _slope(pooled, ratio)
            weights[..., COVARIATE] = -slope
            value = value - slope * (arm.mean[..., COVARIATE] - pooled.mean[..., COVARIATE])
        variance = np.einsum("...i,...ij,...j->...", weights, arm.covariance, weights)
        variance = np.where(variance <= (ROUNDING * value) ** 2, 0.0, variance)
        return Estimate(np.asarray(value), np.asarray(variance / arm.units), arm.units)


def _weights(moments: Moments, ratio: bool) -> Floats:
    """Return the metric's derivative by the mean of each of a unit's numbers, (..., 3)."""
    weights = np.zeros_like(moments.mean)
    if not ratio:
        weights[..., VALUE] = 1.0
        return weights
    denominator = moments.mean[..., DENOMINATOR]
    weights[..., VALUE] = 1 / denominator
    weights[..., DENOMINATOR] = -moments.mean[..., VALUE] / denominator**2
    return weights


def _slope(pooled: Moments, ratio: bool) -> Floats:
    """Return the least-squares slope of the metric on the covariate, (...,); 0 for a constant covariate."""
    covariance = pooled.covariance
    with_covariate = np.einsum("...i,...i->...", _weights(pooled, ratio), covariance[..., COVARIATE])
    spread = covariance[..., COVARIATE, COVARIATE]
    return np.asarray(np.where(spread > 0, with_covariate / spread, 0.0))


def finite(value: float | np.ndarray) -> float | None:
    """Return a value as a float; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


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

    pooled: the same estimate from the units of all arms.
    ratio: 1 plus or minus a margin that is a share of control's value. The margin is in Fieller's interval
        exactly if 0 is in the one of this contrast, which also exists if control's value is near 0. It is NaN
        if control's value is clearly below 0, because a share of it means nothing.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        control, arm = _cautious(control, arm, pooled)
        has_interval = np.minimum(control.units, arm.units) >= MIN_UNITS
        has_interval &= control.variance + arm.variance > 0
        units = np.maximum(control.units + arm.units, 1)
        width = np.where(has_interval, boundary.multiplier(units), np.nan)
        difference = arm.value - ratio * control.value
        error = np.sqrt(arm.variance + ratio**2 * control.variance)
        radius = width * error
        if ratio != 1:
            is_below = control.value + width * np.sqrt(control.variance) < 0
            radius = np.where(is_below, np.nan, radius)
        relative_low, relative_high = _fieller(control, arm, width)
        return Contrast(
            difference=difference,
            low=difference - radius,
            high=difference + radius,
            relative=np.where(control.value > 0, (arm.value - control.value) / control.value, np.nan),
            relative_low=relative_low,
            relative_high=relative_high,
            p_value=np.where(has_interval, boundary.p_value(difference / error, units), 1.0),
        )


def _cautious(control: Estimate, arm: Estimate, pooled: Estimate) -> tuple[Estimate, Estimate]:
    """Return both estimates with the variance of all units together if that is the larger one.

    A small arm that has none of the rare events by chance would look too certain.
    """
    spread = pooled.variance * pooled.units
    control_variance = spread / control.units
    arm_variance = spread / arm.units
    is_larger = control_variance + arm_variance > control.variance + arm.variance
    return (
        replace(control, variance=np.where(is_larger, control_variance, control.variance)),
        replace(arm, variance=np.where(is_larger, arm_variance, arm.variance)),
    )


def _fieller(control: Estimate, arm: Estimate, width: Floats) -> tuple[Floats, Floats]:
    """Return the interval of arm / control − 1; NaN unless control's value is clearly above 0.

    It holds all r − 1 for which arm − r · control is within `width` standard errors of 0.
    """
    a = control.value**2 - width**2 * control.variance
    b = arm.value * control.value
    root = np.sqrt(np.maximum(b**2 - a * (arm.value**2 - width**2 * arm.variance), 0.0))
    is_bounded = (a > 0) & (control.value > 0)
    low = np.where(is_bounded, (b - root) / a - 1, np.nan)
    high = np.where(is_bounded, (b + root) / a - 1, np.nan)
    return low, high


def error_of_bounded(units: ArrayLike, mean: ArrayLike, variance: ArrayLike, largest: float = 1.0) -> Floats:
    """Return the standard error of a mean of bounded values, never 0. All arrays have one shape.

    UNSEEN_UNITS more are added to the variance, half of them at each bound, because the next units may differ
    from all that came so far.
    units: above 0. variance: of the units' values. largest: the largest |value| that is possible.
    """
    number = np.asarray(units, np.float64)
    average = np.asarray(mean, np.float64)
    total = number + UNSEEN_UNITS
    squares = (number - 1) * np.asarray(variance, np.float64) + number * average**2
    squares += UNSEEN_UNITS * largest**2
    return np.asarray(np.sqrt((squares / total - (number * average / total) ** 2) / number))
