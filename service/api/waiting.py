"""Waits for an answer as long as somebody wants it: the one place that watches for clients that hang up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from service.errors import ClientDisconnected, DeadlineExceeded

T = TypeVar("T")


async def answer(work: Coroutine[Any, Any, T], receive: Receive, *, timeout_s: float) -> T:
    """Return the result of `work`; cancel it if its client hangs up or its time runs out.

    Args:
        work: runs in the caller's task. If it is cancelled, it removes from the queue what it has put there.
        receive: the request's own channel, its body read to the end.

    Raises:
        ClientDisconnected: the client was gone first.
        DeadlineExceeded: `timeout_s` passed first.
    """
    waiting = asyncio.current_task()
    assert waiting is not None
    hung_up = is_over = False

    def hang_up(_: asyncio.Task[None]) -> None:
        nonlocal hung_up
        if is_over:  # the loop had this call on its list already when the wait ended
            return
        hung_up = True
        waiting.cancel()

    watch = asyncio.create_task(_disconnect(receive))
    watch.add_done_callback(hang_up)
    patience = asyncio.timeout(timeout_s)
    try:
        async with patience:
            return await work
    except TimeoutError:
        if patience.expired():
            raise DeadlineExceeded from None
        raise
    except asyncio.CancelledError:
        if hung_up and waiting.cancelling() == 1:  # nobody else wants this task to end
            raise ClientDisconnected from None
        raise
    finally:
        is_over = True
        if hung_up:
            waiting.uncancel()
        watch.remove_done_callback(hang_up)
        watch.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
