"""A service whose device is busy for as long as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.service.in_process import QUERY, TITLES, Service

LONG_QUEUE_TOKENS = 256
LIMITS: dict[str, Any] = {
    "max_batch_tokens": 64,
    "max_queue_tokens": 10**6,
    "max_queue_s": 1e6,  # however slow the machine, nothing is refused
    "request_timeout_s": 1e6,
}
"""Settings of such a service."""


@asynccontextmanager
async def long_queue(service: Service) -> AsyncIterator[None]:
    """Keep more than LONG_QUEUE_TOKENS in the queue, by requests that would take long."""
    long = [
        asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 250, variant="full"))
        for _ in range(4)
    ]
    scheduler = service.replica.scheduler
    scheduler._queue._max_age_s = 1e6  # the long requests take no part of the small batches
    while len(scheduler._requests) < len(long):
        assert not any(request.done() for request in long), "refused, or too short"
        await asyncio.sleep(0)
    yield
    assert scheduler.queued_tokens > LONG_QUEUE_TOKENS, "too short for the test to mean something"
    for request in long:
        request.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    assert not scheduler.queued_tokens
