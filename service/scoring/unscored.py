"""The answer to a request that could not be scored: its titles in the order in which they came."""

from __future__ import annotations

from headroom.service.engine.request import Deadline
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import HeadMaskInfo, ScoreResponse, ScoreResult, Timing, Usage
from headroom.service.scoring.catalog import CACHED_SPEC_CHARS, Catalog
from headroom.service.scoring.cutoff import check_cutoff

UNKNOWN_MASK = HeadMaskInfo("", "none", 0, 0, 0, 0, 0, 0)
"""The mask in an answer that no replica was there for."""


def unscored(request: ScoreRequest, deadline: Deadline, catalog: Catalog | None) -> ScoreResponse:
    """Return an answer in which no title is scored: all have the score 0, so that they keep their order.

    catalog: the config that the request was to be scored under; None if no replica was there for it.
    Raises InvalidRequest or InvalidMask if it would have been refused, were it not for the failure.
    """
    response = ScoreResponse(
        model="headroom",
        variant="",
        head_mask=UNKNOWN_MASK,
        assignment=None,
        degraded=False,
        results=[_unscored(index) for index in range(len(request.texts()))],
        usage=Usage(0, 0),
        timing_ms=Timing(0.0, 0.0, 0.0, deadline.elapsed() * 1000),
        reranked=False,
    )
    if catalog is not None:
        mask = request.head_mask
        if not isinstance(mask, str) or len(mask) > CACHED_SPEC_CHARS:
            mask = None  # it takes long to read
        variant = catalog.choose(request.variant, mask)
        check_cutoff(request, variant)
        response.model = variant.classifier.name
        response.variant = variant.name
        response.head_mask = variant.info
        response._labels = variant.classifier.config.labels
    return response


def _unscored(index: int) -> ScoreResult:
    result = ScoreResult(
        index=index,
        grade=None,
        label=None,
        expected_grade=None,
        score=0.0,
        probabilities=None,
        tokens=0,
        unknown_tokens=0,
        truncated=False,
        raw_score=0.0,
    )
    result.scored = False
    return result
