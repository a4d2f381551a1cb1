"""A metric's value in each arm and the variance of that value: means, ratios by the delta method, CUPED."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.experiments.analysis.moments import COVARIATE, DENOMINATOR, VALUE, Floats, Moments


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one arm, or of many experiments' arms at once; all arrays of one shape.

    variance: of `value` as an estimate, so it falls as one over units; skewness: of the units' values.
    """

    value: Floats
    variance: Floats
    units: Floats
    skewness: Floats


def estimate(arm: Moments, pooled: Moments, *, ratio: bool = False, adjusted: bool = False) -> Estimate:
    """The mean of VALUE, or of VALUE over that of DENOMINATOR.

    pooled: the moments of all arms together, for what the arms must share.
    ratio: linearised at the arm's own means (delta method).
    adjusted: VALUE is corrected for COVARIATE (CUPED; Deng, Xu, Kohavi & Walker 2013): by the slope over all
        arms times how far the arm's covariate is from that of all.
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
        variance_of_value = np.asarray(np.maximum(variance, 0.0) / arm.units)
    return Estimate(np.asarray(value), variance_of_value, arm.units, arm.skewness)


def _weights(moments: Moments, ratio: bool) -> Floats:
    """(..., 3): what one more of each of a unit's numbers adds to the metric."""
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
    """(...,): of the metric on the covariate, by least squares; 0 where the covariate does not vary."""
    covariance = pooled.covariance
    with_covariate = np.einsum("...i,...i->...", _weights(pooled, ratio), covariance[..., COVARIATE])
    spread = covariance[..., COVARIATE, COVARIATE]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spread > 0, with_covariate / spread, 0.0))
