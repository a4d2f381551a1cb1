"""Runs calls in threads, so that the event loop goes on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from headroom.service.errors import Draining

T = TypeVar("T")


async def in_thread(threads: Executor, call: Callable[..., T], *arguments: object) -> T:
    """Return what a call returns in one of the threads. Raises Draining if they have been shut down."""
    try:
        answer = asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
    except RuntimeError as error:
        raise Draining from error
    return await answer
