"""Estimates a metric's value in each arm and its variance: means, ratios by the delta method, CUPED."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from service.experiments.analysis.moments import COVARIATE, DENOMINATOR, VALUE, Floats, Moments

ROUNDING = 1e-12
"""Units whose values differ by less than this share of their mean are alike: the rest is rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate for one arm, or for the arms of many experiments at once. All arrays have one shape.

    variance: the squared standard error of `value`, which falls as one over units. skewness: the skewness of
    the units' values.
    """

    value: Floats
    variance: Floats
    units: Floats
    skewness: Floats


def estimate(arm: Moments, pooled: Moments, *, ratio: bool = False, adjusted: bool = False) -> Estimate:
    """Return the mean of VALUE, or that mean divided by the mean of DENOMINATOR.

    pooled: the moments of all arms together, for the slope that the arms share.
    ratio: the estimate is a ratio, linearised at the arm's own means (delta method).
    adjusted: VALUE is corrected for COVARIATE (CUPED; Deng, Xu, Kohavi & Walker 2013) by the slope over all
        arms times the distance of the arm's mean covariate from that of all arms.
    """
    weights = _weights(arm, ratio)
    value = np.where(arm.units > 0, arm.mean[..., VALUE], np.nan)
    if ratio:
        with np.errstate(invalid="ignore", divide="ignore"):
            value = value / arm.mean[..., DENOMINATOR]
    if adjusted:
        slope = _slope(pooled, ratio)
        weights[..., COVARIATE] = -slope
        value = value - slope * (arm.mean[..., COVARIATE] - pooled.mean[..., COVARIATE])
    variance = np.einsum("...i,...ij,...j->...", weights, arm.covariance, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(variance <= (ROUNDING * value) ** 2, 0.0, variance)
        variance_of_value = np.asarray(variance / arm.units)
    return Estimate(np.asarray(value), variance_of_value, arm.units, arm.skewness)


def _weights(moments: Moments, ratio: bool) -> Floats:
    """Return the metric's derivative by the mean of each of a unit's numbers, (..., 3)."""
    weights = np.zeros_like(moments.mean)
    if not ratio:
        weights[..., VALUE] = 1.0
        return weights
    with np.errstate(invalid="ignore", divide="ignore"):
        denominator = moments.mean[..., DENOMINATOR]
        weights[..., VALUE] = 1 / denominator
        weights[..., DENOMINATOR] = -moments.mean[..., VALUE] / denominator**2
    return weights


def _slope(pooled: Moments, ratio: bool) -> Floats:
    """Return the least-squares slope of the metric on the covariate, (...,); 0 for a constant covariate."""
    covariance = pooled.covariance
    with_covariate = np.einsum("...i,...i->...", _weights(pooled, ratio), covariance[..., COVARIATE])
    spread = covariance[..., COVARIATE, COVARIATE]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spread > 0, with_covariate / spread, 0.0))


def finite(value: float | np.ndarray) -> float | None:
    """Return a value as a float; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None
