"""Gives free memory back to the system at the start and once a minute, in a process whose allocator keeps it.

jemalloc keeps the pages of freed blocks, because a forward pass frees and asks for the same ones in every
layer (docs/decisions/008-memory.md). So the process would keep for ever what a burst of large requests took.
Re-faulting the pages that it still needs costs 0.3 ms per MiB.
"""

import asyncio
import ctypes

EVERY_S = 60.0

_PURGE = b"arena.4096.purge"
"""The name of the action for `mallctl`; 4096 stands for all arenas (MALLCTL_ARENAS_ALL)."""


async def release_memory_periodically() -> None:
    """Give free memory back now, which loading and warming up left, and every EVERY_S seconds, off the event
    loop."""
    while True:
        await asyncio.to_thread(release_memory)
        await asyncio.sleep(EVERY_S)


def release_memory() -> bool:
    """Give the pages of freed blocks back, if jemalloc is the allocator. Returns whether it is."""
    try:
        mallctl = ctypes.CDLL(None).mallctl
    except (AttributeError, OSError, TypeError):  # another allocator, or a system without `dlopen(NULL)`
        return False
    return bool(mallctl(_PURGE, None, None, None, ctypes.c_size_t(0)) == 0)
