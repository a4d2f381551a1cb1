"""Estimates a metric's value and its variance from the moments of the units: means, ratios, CUPED."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

VALUE, DENOMINATOR, COVARIATE = range(3)
"""The three numbers of a unit. A number that a metric lacks is 0."""

ROUNDING = 1e-12
"""Units whose values differ by less than this share of their mean are alike: the rest is rounding."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of any number of units. Leading axes are experiments that are computed at once.

    units: (...,). mean: (..., 3). scatter: (..., 3, 3), sums of products of deviations from the mean.
    """

    units: Floats
    mean: Floats
    scatter: Floats

    @classmethod
    def from_sums(
        cls, units: ArrayLike, sums: ArrayLike, products: ArrayLike, centre: ArrayLike = 0.0
    ) -> Moments:
        """Return the moments from sums over units of v − centre and of its products.

        units: (...,); sums: (..., 3); products: (..., 3, 3); centre: (3,), near the mean.
        """
        n, first = np.asarray(units, np.float64), np.asarray(sums, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = np.where(n[..., None] > 0, first / n[..., None], 0.0)
        scatter = np.asarray(products, np.float64) - first[..., :, None] * shift[..., None, :]
        return cls(n, shift + np.asarray(centre, np.float64), scatter)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of units (Chan, Golub & LeVeque 1983)."""
        units = self.units + other.units
        share = other.units / np.maximum(units, 1)
        apart = other.mean - self.mean
        between = (self.units * share)[..., None, None] * apart[..., :, None] * apart[..., None, :]
        return Moments(units, self.mean + apart * share[..., None], self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Floats:
        """The unbiased estimate, (..., 3, 3); NaN for fewer than two units."""
        freedom = np.where(self.units > 1, self.units - 1, np.nan)
        return np.asarray(self.scatter / freedom[..., None, None])


NOBODY = Moments(np.array(0.0), np.zeros(3), np.zeros((3, 3)))
"""The moments of no units: `sum(parts, NOBODY)` is those of all parts together."""


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
