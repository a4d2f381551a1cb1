"""The one way from a route to scores, in every shape; and the endpoint of /v1/score.

With `on_failure: original_order` in the request or the config, whatever would be 429, 500, 503 or 504 becomes
an answer: the titles in the order in which they came. What the caller did wrong stays an error. A failure is
counted and logged as ever, and experiments see it as one.
"""

import asyncio
import logging
from typing import Annotated

from fastapi import Body

from headroom.service.api.post import Post, Timed
from headroom.service.errors import (
    DeadlineExceeded,
    InternalError,
    QueueFull,
    ServiceError,
    Unavailable,
    as_service_error,
)
from headroom.service.observe.access_log import current
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResponse
from headroom.service.scoring.cutoff import cut_off
from headroom.service.scoring.original import unscored

ANSWERED = (InternalError.status, QueueFull.status, Unavailable.status, DeadlineExceeded.status)
"""Statuses of the errors in whose place the titles may go out in the caller's order."""

logger = logging.getLogger("headroom.api")


async def score(request: Post, body: Annotated[ScoreRequest, Body()]) -> Timed:
    """Grade the titles of a query, under a variant and any head mask."""
    response = await score_titles(request, body)
    return Timed(response, response.timing_ms, headers_of(response))


async def score_titles(request: Post, body: ScoreRequest) -> ScoreResponse:
    """Check a request and score it, and leave out of the answer what it does not want.

    Raises a ServiceError or InvalidMask; if the request keeps the order, only for what the caller did wrong.
    """
    body.check(request.settings)
    if request.keeps_order:
        response = await _score_or_keep_order(request, body)
    else:
        response = await request.backend.score(body, request.deadline)
    if body.has_cutoff and impression_of(response) is None:  # an interleaved list was cut before it was drawn
        cut_off(response, body)
    return response


async def _score_or_keep_order(request: Post, body: ScoreRequest) -> ScoreResponse:
    """Score a request; if that fails, or is not done by the deadline, answer in the caller's order."""
    patience = asyncio.timeout(request.deadline.remaining())
    try:
        async with patience:
            if request.refusal is not None:
                raise request.refusal
            return await request.backend.score(body, request.deadline)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as cause:  # a panic of a library in Rust is no Exception
        error = DeadlineExceeded() if patience.expired() else as_service_error(cause)
        if error.status not in ANSWERED:
            raise
        if error.status == InternalError.status:
            logger.error("request %s failed", current().request_id, exc_info=cause)
        return _in_order(request, body, error)


def _in_order(request: Post, body: ScoreRequest, error: ServiceError) -> ScoreResponse:
    """Return the answer in place of an error, and count it. Raises InvalidRequest or InvalidMask."""
    request.is_untimed = True
    response = unscored(body, request.deadline, request.catalog)
    response.reason = error.type
    current().error = error.type
    metrics = request.app.state.metrics
    metrics.count("unreranked_total", error.type)
    if error.shed is not None:
        metrics.count("shed_total", error.shed)
        current().shed = error.shed
    return response


def headers_of(response: ScoreResponse) -> dict[str, str]:
    """Return the headers that tell about an order in shapes that have no field for it."""
    headers = {"x-reranked": str(response.reranked).lower()}
    if response.reason is not None:
        headers["x-reranked-reason"] = response.reason
    if (cache := current().cache) is not None:
        headers["x-cache"] = cache
    if response.dropped:
        headers["x-dropped"] = str(response.dropped)
    if response.degraded:
        headers["x-degraded"] = "true"
    if (impression := impression_of(response)) is not None:
        headers["x-impression"] = impression
    return headers


def impression_of(response: ScoreResponse) -> str | None:
    """Return the id of an interleaved answer; None of another."""
    return None if response.assignment is None else response.assignment.impression
