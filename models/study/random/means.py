"""The mean change over random masks, with an interval that counts the choice of masks too."""

from __future__ import annotations

import numpy as np

from models.quality.bootstrap import Draws, Estimate, Floats, estimate, standard_errors
from models.study.statistics import Resamples


class MeanOfMasks:
    """The mean change over masks drawn at random, with queries and masks both resampled.

    Both are samples: the standard error adds the variance between queries (of the mean over masks) and that
    between masks (Owen 2007, Annals of Applied Statistics 1, 386–411).
    """

    def __init__(self, resamples: Resamples, weights: Floats) -> None:
        """weights: (1 + resamples, masks), how often each mask is in each resample; row 0 is ones."""
        self._resamples = resamples
        self._weights = weights
        self._values = np.zeros_like(weights)
        self._influences = np.zeros(resamples.clusters)

    def add(self, mask: int, draws: Draws, share: float = 1.0) -> None:
        """Add the change of one mask, times `share` if the change of a mask is itself a mean of several."""
        self._values[:, mask] += share * draws.values
        self._influences += share * draws.influences / self._weights.shape[1]

    def estimate(self) -> Estimate:
        """Return the mean change over masks."""
        variance = standard_errors(self._influences, self._resamples.counts) ** 2 + self._between_masks()
        return estimate(self._means(), np.sqrt(variance), testable=self._resamples.testable)

    def minus(self, other: MeanOfMasks) -> Estimate:
        """Return the difference of two means over the same queries, with masks that were drawn apart."""
        variance = standard_errors(self._influences - other._influences, self._resamples.counts) ** 2
        variance = variance + self._between_masks() + other._between_masks()
        return estimate(self._means() - other._means(), np.sqrt(variance))

    def _means(self) -> Floats:
        return np.asarray((self._weights * self._values).sum(1) / self._weights.shape[1])

    def _between_masks(self) -> Floats:
        """Return the variance of the mean that comes from the choice of masks, (1 + resamples,)."""
        masks = self._weights.shape[1]
        spread = (self._weights * (self._values - self._means()[:, None]) ** 2).sum(1)
        return np.asarray(spread / masks / max(masks - 1, 1))
