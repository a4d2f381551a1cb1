"""The answer to a request that could not be scored, or not all of it: its titles in the order they came.

Titles that are not scored have one score, as low as that of an empty title. So a sort that keeps the order of
equal ones puts them after those that are scored, as the caller had them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headroom.models.arrays import LOWEST
from headroom.service.engine.request import Deadline
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import (
    Assignment,
    HeadMaskInfo,
    ScoreResponse,
    ScoreResult,
    Timing,
    Usage,
)

if TYPE_CHECKING:
    from headroom.service.scoring.catalog import Catalog
    from headroom.service.scoring.column import AnyColumn
    from headroom.service.scoring.computed import Computed

UNKNOWN_MASK = HeadMaskInfo("", "none", 0, 0, 0, 0, 0, 0)
"""The mask in an answer that no replica was there for."""


@dataclass(slots=True)
class Progress:
    """How far the scoring of a request has come, for an answer that is due before it has ended.

    catalog: the config that the request is scored under; None before a replica took it in hand.
    column: what is scored; None before the texts are read, and in an interleaved answer, which needs both
    arms' scores. computed: what it has cost. assignment, degraded: as the whole answer would have them.
    """

    catalog: Catalog | None = None
    column: AnyColumn | None = None
    computed: Computed | None = None
    assignment: Assignment | None = None
    degraded: bool = False


def unscored(
    request: ScoreRequest,
    deadline: Deadline,
    *,
    model: str = "headroom",
    variant: str = "",
    mask: HeadMaskInfo = UNKNOWN_MASK,
    labels: Sequence[str] = (),
) -> ScoreResponse:
    """Return an answer in which no title is scored. model, variant, mask, labels: what should have scored
    them."""
    total_ms = deadline.elapsed() * 1000
    response = ScoreResponse(
        model=model,
        variant=variant,
        head_mask=mask,
        assignment=None,
        degraded=False,
        results=[],
        usage=Usage(0, 0),
        timing_ms=Timing(0.0, 0.0, 0.0, total_ms),
        _labels=labels,
    )
    add_unscored(response, request, floor=0.0)
    return response


def add_unscored(response: ScoreResponse, request: ScoreRequest, *, floor: float) -> None:
    """Add a result for each title that has none. floor: the lowest score that the model can give."""
    results = {result.index: result for result in response.results}
    lowest_raw_score = LOWEST if results else 0.0
    pairs = len(request.texts())
    if len(results) < pairs:
        response.reranked = "partial" if results else False
    response.results = [
        results.get(index) or _unscored(index, floor, lowest_raw_score) for index in range(pairs)
    ]


def _unscored(index: int, score: float, raw_score: float) -> ScoreResult:
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
        raw_score=raw_score,
    )
    result.scored = False
    return result
