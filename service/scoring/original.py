"""The order that you have: titles in the order in which they came, scored by nobody.

It is what the variant `original` gives, and what `on_failure: original_order` answers in place of an error.
No text is read, nothing is queued, and no device is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headroom.service.engine.request import Deadline
from headroom.service.engine.threads import PairRow
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResponse, ScoreResult, StageInfo, Timing, Usage
from headroom.service.scoring.catalog import CACHED_SPEC_CHARS, NO_HEADS, Catalog, Variant
from headroom.service.scoring.column import CascadeColumn, Column
from headroom.service.scoring.cutoff import check_cutoff


class OriginalColumn:
    """The pairs of a request under the variant `original`: a column without rows to compute.

    Its scores fall from 1 along the order, so that a client that sorts by score keeps it.
    """

    rows: Sequence[PairRow] = ()
    seconds = 0.0
    error: Exception | None = None
    is_cut_short = False
    stages: list[StageInfo] | None = None

    def __init__(self, variant: Variant, pairs: int) -> None:
        self.variant = variant
        self._pairs = pairs

    @property
    def usage(self) -> Usage:
        """Return what was scored: nothing."""
        return Usage(pairs=0, tokens=0)

    def results(self) -> list[ScoreResult]:
        """Return one result per pair, in their order."""
        return [_unscored(index, 1 - index / self._pairs) for index in range(self._pairs)]


AnyColumn = Column | CascadeColumn | OriginalColumn


def unscored(request: ScoreRequest, deadline: Deadline, catalog: Catalog | None) -> ScoreResponse:
    """Return the answer to a request that failed: all titles have the score 0, so that they keep their order.

    catalog: the config that the request was to be scored under; None if no replica was there for it.
    Raises InvalidRequest or InvalidMask if it would have been refused, were it not for the failure.
    """
    response = ScoreResponse(
        model="headroom",
        variant="",
        head_mask=NO_HEADS,
        assignment=None,
        degraded=False,
        results=[_unscored(index, 0.0) for index in range(len(request.texts()))],
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


def _unscored(index: int, score: float) -> ScoreResult:
    result = ScoreResult(
        index=index,
        grade=None,
        label=None,
        expected_grade=None,
        score=score,
        probabilities=None,
        tokens=0,
        unknown_tokens=0,
        truncated=False,
        raw_score=score,
    )
    result.scored = False
    return result
