"""The cut-off: leaves titles out of an answer that are not relevant enough for the request.

A title that was not scored is never left out, because nothing is known about it. An interleaved list is cut
before it is drawn, as `interleave.draw_order` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headroom.models.arrays import LOWEST
from headroom.service.errors import InvalidRequest
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResponse, ScoreResult

if TYPE_CHECKING:
    from headroom.service.scoring.catalog import Variant


def check_cutoff(request: ScoreRequest, variant: Variant) -> None:
    """Raise InvalidRequest if `min_score` or `min_grade` is none of the scores or grades of the variant.

    `original` gives none: whoever names it cannot cut off, and where it stands in, every title stays.
    """
    if variant.is_original:
        for field in ("min_score", "min_grade"):
            if request.variant is not None and getattr(request, field) is not None:
                raise InvalidRequest(
                    f"{variant.name!r} is the order in which the titles came and gives no scores; leave "
                    "it out",
                    param=field,
                )
        return
    config = variant.classifier.config
    is_bounded = config.score_activation != "identity"
    if request.min_score is not None and is_bounded and not 0 <= request.min_score <= 1:
        raise InvalidRequest("should be from 0 to 1", param="min_score")
    if request.min_grade is None:
        return
    if not config.is_graded:
        raise InvalidRequest(
            f"the model of variant {variant.name!r} gives no grades; use min_score", param="min_grade"
        )
    highest = len(variant.classifier.grades) - 1
    if request.min_grade > highest:
        raise InvalidRequest(f"should be from 0 to {highest}, the model's highest grade", param="min_grade")


def is_kept(result: ScoreResult, request: ScoreRequest) -> bool:
    """Return whether the answer to the request has this result."""
    if not result.scored:
        return True
    if request.min_score is not None and result.score < _as_score(request.min_score):
        return False
    # Without a grade: a stage of a cascade that gives none has left the title behind.
    return request.min_grade is None or (result.grade is not None and result.grade >= request.min_grade)


def _as_score(limit: float) -> np.float32:
    """Return a limit as float32, which scores are, so that a score that is printed as 0.7 reaches 0.7."""
    return np.float32(min(max(limit, LOWEST), -LOWEST))


def cut_off(response: ScoreResponse, request: ScoreRequest) -> None:
    """Leave out the results that the request does not want, count them, and close the gaps of the ranks."""
    kept = [result for result in response.results if is_kept(result, request)]
    response.dropped = len(response.results) - len(kept)
    ranked = [result for result in kept if result.rank is not None]
    ranked.sort(key=lambda result: result.rank or 0)
    for rank, result in enumerate(ranked, start=1):
        result.rank = rank
    response.results = kept
