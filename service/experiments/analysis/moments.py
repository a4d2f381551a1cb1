"""Means and covariances of the units' numbers, computed in parts and then combined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

VALUE, DENOMINATOR, COVARIATE = range(3)
"""The three numbers of a unit. A number that a metric lacks is 0."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of any number of units. Leading axes are experiments that are computed at once.

    units: (...,). mean: (..., 3). scatter: (..., 3, 3), sums of products of deviations from the mean.
    cubes: (...,), sums of cubes of VALUE's deviations.
    """

    units: Floats
    mean: Floats
    scatter: Floats
    cubes: Floats

    @classmethod
    def of(cls, value: ArrayLike, denominator: ArrayLike = 0.0, covariate: ArrayLike = 0.0) -> Moments:
        """Return the moments of arrays whose last axis is the units."""
        columns = np.broadcast_arrays(
            *(np.asarray(part, np.float64) for part in (value, denominator, covariate))
        )
        rows = np.stack(columns, -1)  # (..., units, 3)
        mean = rows.mean(-2)
        deviations = rows - mean[..., None, :]
        return cls(
            np.full(rows.shape[:-2], float(rows.shape[-2])),
            mean,
            np.einsum("...ui,...uj->...ij", deviations, deviations),
            (deviations[..., VALUE] ** 3).sum(-1),
        )

    @classmethod
    def from_sums(
        cls, units: ArrayLike, sums: ArrayLike, products: ArrayLike, cubes: ArrayLike, centre: ArrayLike = 0.0
    ) -> Moments:
        """Return the moments from sums over units of v − centre, its products, and the cubes of VALUE's.

        units, cubes: (...,); sums: (..., 3); products: (..., 3, 3); centre: (3,), near the mean.
        """
        n, first = np.asarray(units, np.float64), np.asarray(sums, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = np.where(n[..., None] > 0, first / n[..., None], 0.0)
        scatter = np.asarray(products, np.float64) - first[..., :, None] * shift[..., None, :]
        square = np.asarray(products, np.float64)[..., VALUE, VALUE]
        off = shift[..., VALUE]
        third = np.asarray(cubes, np.float64) - 3 * off * square + 2 * n * off**3
        return cls(n, shift + np.asarray(centre, np.float64), scatter, third)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of units (Chan, Golub & LeVeque 1983; for the cubes Pébay 2008)."""
        units = self.units + other.units
        with np.errstate(invalid="ignore"):
            share = np.where(units > 0, other.units / np.maximum(units, 1), 0.0)
        apart = other.mean - self.mean
        weight = self.units * share
        gap = apart[..., VALUE]
        return Moments(
            units,
            self.mean + apart * share[..., None],
            self.scatter
            + other.scatter
            + weight[..., None, None] * apart[..., :, None] * apart[..., None, :],
            self.cubes
            + other.cubes
            + gap**3 * weight * (1 - 2 * share)
            + 3
            * gap
            * ((1 - share) * other.scatter[..., VALUE, VALUE] - share * self.scatter[..., VALUE, VALUE]),
        )

    @property
    def covariance(self) -> Floats:
        """The unbiased estimate, (..., 3, 3); NaN for fewer than two units."""
        with np.errstate(invalid="ignore", divide="ignore"):
            freedom = np.where(self.units > 1, self.units - 1, np.nan)
        return np.asarray(self.scatter / freedom[..., None, None])

    @property
    def skewness(self) -> Floats:
        """The skewness of VALUE, (...,); 0 if VALUE is constant."""
        spread = self.scatter[..., VALUE, VALUE]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(spread > 0, self.cubes * np.sqrt(self.units) / spread**1.5, 0.0))


def pool(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all parts together. There must be at least one part."""
    return reduce(lambda left, right: left + right, parts)
