"""Scores pairs by a variant without a server: in one process, a cascade stage by stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headroom.models.classifier import Classifier
from headroom.models.scores import Scores
from headroom.service.config.settings import LiveConfig
from headroom.service.scoring.cascade import CascadeProgress, lowest_score
from headroom.service.scoring.catalog import BASE, Variant, build_catalog

PORTION = 1024
"""Number of pairs scored between two calls of `advance`."""

_FIELDS = ("logits", "probabilities", "expected_grade", "grade", "score", "raw_score")


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of pairs, in their order.

    stages: of a cascade, the variant that scored each pair last: `scores.score` and `raw_score` can be
        compared over all stages, and the other fields are that variant's own. Else None.
    """

    scores: Scores
    stages: list[str] | None = None


def base_variant(classifier: Classifier) -> Variant:
    """Return the variant of a model with everything on."""
    return build_catalog(LiveConfig(), {BASE: classifier}, Classifier.load).choose(None, None)


def score(
    variant: Variant,
    pairs: Sequence[tuple[str, str]],
    *,
    instruction: str | None = None,
    advance: Callable[[int], None] | None = None,
) -> Scored:
    """Score at least one (query, title) pair. A cascade takes all titles of a query as one request.

    advance: called with how many more pairs have been scored; each counts once per stage.
    """
    stages = variant.stages or (variant,)
    progress = CascadeProgress(
        [query for query, _ in pairs], variant.keeps, [stage.cost for stage in variant.stages]
    )
    merged: dict[str, Any] = {}
    while progress.due:
        for due in progress.due:
            for start in range(0, len(due.pairs), PORTION):
                indices = due.pairs[start : start + PORTION]
                portion = [pairs[index] for index in indices]
                scores = _score(stages[due.stage], portion, instruction)
                for name in _FIELDS:  # a later stage's replace the earlier ones
                    values = getattr(scores, name)
                    shape = (len(pairs), *values.shape[1:])
                    merged.setdefault(name, np.zeros(shape, values.dtype))[indices] = values
                if advance is not None:
                    advance(len(indices))
        raw_scores = merged["raw_score"]
        progress.advance([raw_scores[due.pairs].astype(np.float64) for due in progress.due])
    floor = lowest_score(variant.classifier.config.score_activation)
    merged["score"] = progress.scores(merged["score"], floor)
    merged["raw_score"] = progress.raw_scores()
    return Scored(
        Scores(**merged),
        [stages[stage].name for stage in progress.stages] if variant.stages else None,
    )


def _score(variant: Variant, pairs: Sequence[tuple[str, str]], instruction: str | None) -> Scores:
    mask = None if variant.mask.is_none else variant.mask
    return variant.classifier.score(pairs, mask, instruction=instruction)
