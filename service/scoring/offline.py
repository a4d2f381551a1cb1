"""Scores pairs by a variant without a server: in one process, a cascade stage by stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.checkpoint.chunks import Chunk, Overflow
from models.classifier import Classifier, Scores
from service.config.settings import LiveConfig
from service.scoring.cascade import Course, floor_of
from service.scoring.catalog import BASE, Variant, build_catalog

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


def whole(classifier: Classifier) -> Variant:
    """Return a model as `score` takes it, with everything on."""
    return build_catalog(LiveConfig(), {BASE: classifier}, Classifier.load).choose(None, None)


def score(
    variant: Variant,
    pairs: Sequence[tuple[str, str]],
    *,
    overflow: Overflow = "truncate",
    instruction: str | None = None,
    advance: Callable[[int], None] | None = None,
) -> Scored:
    """Score at least one (query, title) pair. A cascade takes all titles of a query as one request.

    advance: told again and again how many more pairs have been scored; each counts once per stage.
    """
    stages = variant.stages or (variant,)
    course = Course([query for query, _ in pairs], variant.keeps)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    chunks: list[Chunk | None] = [None] * len(pairs)
    while course.due:
        raw_scores = [np.empty(len(due.pairs), np.float64) for due in course.due]
        for due, of_due in zip(course.due, raw_scores, strict=True):
            for start in range(0, len(due.pairs), PORTION):
                indices = due.pairs[start : start + PORTION]
                portion = [pairs[index] for index in indices]
                scores_of_portion = _score(stages[due.stage], portion, overflow, instruction)
                of_due[start : start + PORTION] = scores_of_portion.raw_score
                for name in _FIELDS:
                    values = getattr(scores_of_portion, name)
                    shape = (len(pairs), *values.shape[1:])
                    arrays.setdefault(name, np.zeros(shape, values.dtype))[indices] = values
                for index, chunk in zip(indices, scores_of_portion.chunks or (), strict=False):
                    chunks[index] = chunk
                if advance is not None:
                    advance(len(indices))
        course.advance(raw_scores)
    floor = floor_of(variant.classifier.config.score_activation)
    arrays["score"], arrays["raw_score"] = course.scores(arrays["score"], floor), course.raw_scores()
    return Scored(
        Scores(**arrays, chunks=tuple(chunks) if overflow == "chunks" else None),
        [stages[stage].name for stage in course.stages] if variant.stages else None,
    )


def _score(
    variant: Variant, pairs: Sequence[tuple[str, str]], overflow: Overflow, instruction: str | None
) -> Scores:
    mask = None if variant.mask.is_none else variant.mask
    return variant.classifier.score(pairs, mask, overflow=overflow, instruction=instruction)
