"""Does it matter which heads the search keeps, or only how many of each layer?

The chosen mask is compared on the held-out queries with random masks that keep as many heads of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.quality.evaluation import Evaluation
from models.study.base import Head, Matrix, held_heads, weights_without
from models.study.search.noninferiority import TESTED_METRICS
from models.study.statistics import LEVEL, permutation_p
from models.study.study import Study


@dataclass(frozen=True)
class Rivals:
    """The changes from the intact model on the held-out queries, by metric.

    chosen: of the chosen mask. random: (sets,), of random masks with as many heads of each layer.
    """

    chosen: dict[str, float]
    random: dict[str, NDArray[np.float64]]

    @property
    def p(self) -> dict[str, float]:
        """Return by metric the share of masks that do at least as well as the chosen one, which counts
        too."""
        return {metric: permutation_p(self.chosen[metric], self.random[metric]) for metric in TESTED_METRICS}

    @property
    def only_layers(self) -> bool | None:
        """Return whether only the number of heads in each layer matters, by the metrics that are defined:
        True if random heads do as well, False if they do worse in every metric, None if the metrics differ
        or there are too few random masks to tell."""
        p = [value for value in self.p.values() if np.isfinite(value)]
        if not p or 1 / (1 + len(self.random["qwk"])) > LEVEL:
            return None
        worse = [value <= LEVEL for value in p]
        return True if not any(worse) else False if all(worse) else None


def masks(weights: Matrix, held: tuple[Head, ...], sets: int, seed: int) -> list[Matrix]:
    """Return random masks with as many heads of each layer as `weights` keeps."""
    made = []
    for number in range(sets):
        rng = np.random.default_rng([seed, 10, number])
        gone: list[Head] = []
        for layer in sorted({layer for layer, _ in held}):
            heads = [head for head in held if head[0] == layer]
            off = sum(weights[head] == 0 for head in heads)
            gone += [heads[i] for i in rng.permutation(len(heads))[:off]]
        made.append(weights_without(gone, (weights.shape[0], weights.shape[1])))
    return made


def compete(study: Study, intact: Evaluation, weights: Matrix, quality: Evaluation) -> Rivals:
    """Evaluate the rivals of a mask. intact, quality: of the intact model and of the mask on the held-out
    queries."""
    assert study.holdout_runner is not None
    others = masks(weights, held_heads(study.classifier), study.effort.orders, study.seed)
    evaluated = study.holdout_runner.evaluate(others, "random masks of the same layers")
    before, after = intact.metrics(), quality.metrics()
    metrics = [one.metrics() for one in evaluated]
    return Rivals(
        {metric: after[metric] - before[metric] for metric in TESTED_METRICS},
        {metric: np.array([one[metric] - before[metric] for one in metrics]) for metric in TESTED_METRICS},
    )
