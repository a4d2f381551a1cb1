"""Waiting for an answer no longer than anybody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from service.errors import ClientDisconnected, DeadlineExceeded

T = TypeVar("T")


async def answer(work: Coroutine[Any, Any, T], receive: Receive, *, timeout_s: float) -> T:
    """The result of `work`, which is cancelled where its client hangs up or its time runs out.

    Args:
        work: drops what it has queued when it is cancelled.
        receive: the request's own channel, its body read to the end.

    Raises:
        ClientDisconnected: the client was gone first.
        DeadlineExceeded: `timeout_s` passed first.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnected
        raise DeadlineExceeded
    finally:
        task.cancel()
        gone.cancel()
        # Until both have let go: a ticket that is being cancelled must be off the queue when this returns.
        await asyncio.wait((task, gone))


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
