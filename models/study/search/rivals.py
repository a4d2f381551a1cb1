"""What did the search find: these heads, or only how many of each layer?

The found mask beside others that keep as many heads, on the held-out queries: random heads with the same
number in each layer, random heads of all layers, and the lowest layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.head_mask import HeadMask
from models.quality.evaluation import Evaluation
from models.study.base import Matrix, Section, Study, Table
from models.study.search import importance
from models.study.search.noninferiority import METRICS
from models.study.wording import NAMES, p_value, signed

MATCHED = "random, as many of each layer"
ANYWHERE = "random, all layers"
LOWEST = "lower layers only"

LEVEL = 0.05


@dataclass(frozen=True)
class Rival:
    """A mask with as many heads as the found one. held_out: its quality on the held-out queries."""

    kind: str
    weights: Matrix
    held_out: Evaluation


@dataclass(frozen=True)
class Rivalry:
    """The found mask and its rivals on the held-out queries, all with `heads_on` heads."""

    heads_on: int
    intact: dict[str, float]
    found: dict[str, float]
    rivals: list[Rival]

    def changes(self, kind: str, metric: str) -> np.ndarray:
        """The change from the intact model of each rival of this kind, (sets,)."""
        values = [rival.held_out.metrics()[metric] for rival in self.rivals if rival.kind == kind]
        return np.array(values) - self.intact[metric]

    def p(self, kind: str, metric: str) -> float:
        """The share of masks, the found one counted, that do at least as well as it."""
        found = self.found[metric] - self.intact[metric]
        others = self.changes(kind, metric)
        return float((1 + (others >= found).sum()) / (1 + len(others)))

    @property
    def only_layers(self) -> bool | None:
        """Whether the numbers of heads by layer are all that was found: True where random heads with these
        numbers do as well, False where they do worse in every metric, None where it differs."""
        worse = [self.p(MATCHED, metric) <= LEVEL for metric in METRICS]
        return True if not any(worse) else False if all(worse) else None


def masks(weights: Matrix, held: Sequence[importance.Head], sets: int, seed: int) -> list[tuple[str, Matrix]]:
    """(kind, weights) of every rival of a mask."""
    size = int(sum(weights[head] > 0 for head in held))
    found = [
        (LOWEST, importance.weights_without(importance.from_the_top(held)[: len(held) - size], weights.shape))
    ]
    for number in range(sets):
        rng = np.random.default_rng([seed, 10, number])
        gone: list[importance.Head] = []
        for layer in sorted({layer for layer, _ in held}):
            heads = [head for head in held if head[0] == layer]
            off = sum(weights[head] == 0 for head in heads)
            gone += [heads[i] for i in rng.permutation(len(heads))[:off]]
        found.append((MATCHED, importance.weights_without(gone, weights.shape)))
        order = importance.at_random(held, seed + number)
        found.append((ANYWHERE, importance.weights_without(order[: len(held) - size], weights.shape)))
    return found


def compete(study: Study, intact: Evaluation, weights: Matrix, found: Evaluation) -> Rivalry:
    """Evaluates the rivals of a mask on the held-out queries; intact, found: evaluations on them."""
    assert study.holdout_runner is not None
    held = importance.held_heads(study.classifier)
    others = masks(weights, held, study.effort.orders, study.seed)
    evaluated = study.holdout_runner.evaluate([mask for _, mask in others], "rivals of the mask, held out")
    return Rivalry(
        int((weights > 0).sum()),
        intact.metrics(),
        found.metrics(),
        [Rival(kind, mask, quality) for (kind, mask), quality in zip(others, evaluated, strict=True)],
    )


def as_json(rivalry: Rivalry) -> dict[str, Any]:
    """The key "rivals" of report.json."""
    return {
        "heads_on": rivalry.heads_on,
        "found": {metric: rivalry.found[metric] for metric in NAMES},
        "p": {kind: {metric: rivalry.p(kind, metric) for metric in METRICS} for kind in (MATCHED, ANYWHERE)},
        "masks": [
            {
                "kind": rival.kind,
                "spec": HeadMask.from_matrix(rival.weights).spec,
                **{metric: rival.held_out.metrics()[metric] for metric in NAMES},
            }
            for rival in rivalry.rivals
        ],
    }


def sentence(rivalry: Rivalry) -> str:
    """What it says, in a few sentences."""
    text = (
        f"Was it the heads or the layers? On the held-out queries {len(rivalry.changes(MATCHED, 'qwk'))} "
        f"random masks with as many heads in each "
        f"layer change QWK by {_spread(rivalry, MATCHED, 'qwk')} and NDCG@10 by "
        f"{_spread(rivalry, MATCHED, 'ndcg10')}; the found mask changes them by {_found(rivalry, 'qwk')} (p "
        f"{p_value(rivalry.p(MATCHED, 'qwk'))}) and {_found(rivalry, 'ndcg10')} (p "
        f"{p_value(rivalry.p(MATCHED, 'ndcg10'))}). {rivalry.heads_on} random heads of all layers change "
        f"QWK by "
        f"{_spread(rivalry, ANYWHERE, 'qwk')}, the {rivalry.heads_on} lowest heads by "
        f"{signed(float(rivalry.changes(LOWEST, 'qwk')[0]))}. "
    )
    if rivalry.only_layers is None:
        return text + "The two metrics differ, so it is open whether more was found than the layers."
    if rivalry.only_layers:
        return (
            text + "What the search found is the layers: within a layer these queries cannot tell its choice "
            "from chance."
        )
    return text + "So the choice within the layers matters too."


def section(rivalry: Rivalry) -> Section:
    """The table of the found mask beside its rivals."""
    rows = [("found by the search", *(_found(rivalry, metric) for metric in METRICS), "")]
    for kind in (MATCHED, ANYWHERE, LOWEST):
        p = "" if kind == LOWEST else " / ".join(p_value(rivalry.p(kind, metric)) for metric in METRICS)
        rows.append((kind, *(_spread(rivalry, kind, metric) for metric in METRICS), p))
    return Section(
        "Search: the heads or the layers?",
        (
            f"All masks keep {rivalry.heads_on} heads and are judged on the held-out queries. Of random "
            f"masks the "
            "table gives the median change and, in brackets, the worst and the best. p is the share of "
            "masks, the "
            "found one counted, that do at least as well as it.",
        ),
        (Table(("mask", *(f"Δ {NAMES[metric]}" for metric in METRICS), "p"), tuple(rows)),),
    )


def _found(rivalry: Rivalry, metric: str) -> str:
    return signed(rivalry.found[metric] - rivalry.intact[metric])


def _spread(rivalry: Rivalry, kind: str, metric: str) -> str:
    changes = rivalry.changes(kind, metric)
    if len(changes) == 1:
        return signed(float(changes[0]))
    low, middle, high = (signed(float(value)) for value in np.quantile(changes, (0, 0.5, 1)))
    return f"{middle} ({low} to {high})"
