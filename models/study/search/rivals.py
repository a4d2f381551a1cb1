"""Does it matter which heads the search keeps, or only how many of each layer?

The chosen mask is compared on the held-out queries with others that keep as many heads: random heads with the
same number in each layer, random heads of all layers, and the heads of the lowest layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.quality.evaluation import Evaluation
from models.study.base import Matrix
from models.study.heads import Head, held_heads, weights_without
from models.study.search import importance
from models.study.search.noninferiority import TESTED_METRICS
from models.study.statistics import LEVEL, permutation_p
from models.study.study import Study

MATCHED = "random, as many of each layer"
ANYWHERE = "random, all layers"
LOWEST = "lower layers only"


@dataclass(frozen=True)
class Rival:
    """A mask with as many heads as the chosen one. held_out: its quality on the held-out queries."""

    kind: str
    weights: Matrix
    held_out: Evaluation


@dataclass(frozen=True)
class Rivalry:
    """The chosen mask and its rivals on the held-out queries, all with `heads_on` heads.

    intact, chosen: the metrics of the intact model and of the chosen mask.
    """

    heads_on: int
    intact: dict[str, float]
    chosen: dict[str, float]
    rivals: list[Rival]

    def changes(self, kind: str, metric: str) -> np.ndarray:
        """Return the change from the intact model of each rival of this kind, (sets,)."""
        values = [rival.held_out.metrics()[metric] for rival in self.rivals if rival.kind == kind]
        return np.array(values) - self.intact[metric]

    def p(self, kind: str, metric: str) -> float:
        """Return the share of masks that do at least as well as the chosen one, which counts too."""
        return permutation_p(self.chosen[metric] - self.intact[metric], self.changes(kind, metric))

    @property
    def defined(self) -> list[str]:
        """Return the tested metrics that the held-out queries define."""
        return [metric for metric in TESTED_METRICS if math.isfinite(self.chosen[metric])]

    @property
    def least_p(self) -> float:
        """Return the smallest p that this many random masks with as many heads of each layer allow."""
        return 1 / (1 + sum(rival.kind == MATCHED for rival in self.rivals))

    @property
    def only_layers(self) -> bool | None:
        """Return whether only the number of heads in each layer matters, by the metrics that are defined.

        True if random heads with these numbers do as well, False if they do worse in every metric, None if
        the metrics differ or there are too few random masks to tell.
        """
        if self.least_p > LEVEL or not self.defined:
            return None
        worse = [self.p(MATCHED, metric) <= LEVEL for metric in self.defined]
        return True if not any(worse) else False if all(worse) else None


def masks(weights: Matrix, held: Sequence[Head], sets: int, seed: int) -> list[tuple[str, Matrix]]:
    """Return (kind, weights) of every rival of a mask."""
    size = int(sum(weights[head] > 0 for head in held))
    shape = (weights.shape[0], weights.shape[1])
    rivals = [(LOWEST, weights_without(importance.from_the_top(held)[: len(held) - size], shape))]
    for number in range(sets):
        rng = np.random.default_rng([seed, 10, number])
        gone: list[Head] = []
        for layer in sorted({layer for layer, _ in held}):
            heads = [head for head in held if head[0] == layer]
            off = sum(weights[head] == 0 for head in heads)
            gone += [heads[i] for i in rng.permutation(len(heads))[:off]]
        rivals.append((MATCHED, weights_without(gone, shape)))
        order = importance.at_random(held, seed + number)
        rivals.append((ANYWHERE, weights_without(order[: len(held) - size], shape)))
    return rivals


def compete(study: Study, intact: Evaluation, weights: Matrix, quality: Evaluation) -> Rivalry:
    """Evaluate the rivals of a mask on the held-out queries.

    intact, quality: the evaluations of the intact model and of the mask on these queries.
    """
    assert study.holdout_runner is not None
    held = held_heads(study.classifier)
    others = masks(weights, held, study.effort.orders, study.seed)
    evaluated = study.holdout_runner.evaluate([mask for _, mask in others], "rivals of the mask, held out")
    return Rivalry(
        int((weights > 0).sum()),
        intact.metrics(),
        quality.metrics(),
        [Rival(kind, mask, held_out) for (kind, mask), held_out in zip(others, evaluated, strict=True)],
    )
