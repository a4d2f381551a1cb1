"""Gives free memory back to the system now and then, in a process whose allocator is told to keep it.

jemalloc keeps the pages of freed blocks, because a forward pass frees and asks for the same ones in every
layer (docs/decisions/008-memory.md). So the process would keep for ever what a burst of large requests took.
Once a minute, it faults the pages that it still needs in again, at 0.3 ms per MiB.
"""

import asyncio
import ctypes

EVERY_S = 60.0

_ORDER = b"arena.4096.purge"
"""To jemalloc; 4096 stands for all arenas (MALLCTL_ARENAS_ALL)."""


async def give_back_for_ever() -> None:
    """Give free memory back every EVERY_S seconds, off the event loop."""
    while True:
        await asyncio.sleep(EVERY_S)
        await asyncio.to_thread(give_back)


def give_back() -> bool:
    """Give the pages of freed blocks back, if jemalloc is the allocator. Returns whether it is."""
    try:
        order = ctypes.CDLL(None).mallctl
    except (AttributeError, OSError, TypeError):  # another allocator, or a system without `dlopen(NULL)`
        return False
    return bool(order(_ORDER, None, None, None, ctypes.c_size_t(0)) == 0)
