"""A bounded cache of copies of a layer's heads or units, without those that a mask switches off."""

import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

import numpy as np

from headroom.models.arrays import Bools
from headroom.models.layer import AttentionHeads, FeedForward
from headroom.models.lru import LeastRecentlyUsed

S = TypeVar("S", AttentionHeads, FeedForward)

PartsKey: TypeAlias = tuple[int, type, bytes]
"""A set of heads or units of one layer."""


class WeightCache:
    """A bounded cache of copies of some heads or units of a layer. Threads may share it.

    A set is copied when it comes for the second time, if the sets that came in between would not have filled
    the cache. So a mask that comes once copies nothing, and masks that take turns do not evict each other if
    there are more of them than the cache holds. The least recently used set is evicted first.
    max_bytes: the limit of all copies together; may change at any time.
    finish: waits for the device, so that other threads' streams may use what this thread's stream has copied.
    """

    def __init__(self, max_bytes: int, finish: Callable[[], None] = lambda: None) -> None:
        self.max_bytes = max_bytes
        self._finish = finish
        self._copies = LeastRecentlyUsed[PartsKey, AttentionHeads | FeedForward]()
        self._seen = LeastRecentlyUsed[PartsKey, None]()
        """The sets that came and were not copied; their cost is the bytes that they would take."""
        self._in_work: set[PartsKey] = set()
        """The sets that a thread is copying now."""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all copies."""
        return self._copies.cost

    def get(self, layer: int, whole: S, on: Bools, *, at_once: bool = False) -> S | None:
        """Return a copy of the heads (or units) of `layer` that are on, (count,) bool, or None.

        None means that it does not pay to copy them yet, or that another thread is copying them; this call
        does not wait for it. at_once: the set is known to come again.
        """
        key = (layer, type(whole), on.tobytes())
        with self._lock:
            known = self._copies.get(key)
            if known is not None:
                return cast(S, known)
            size = whole.nbytes * int(np.count_nonzero(on)) // whole.count
            if (
                key in self._in_work
                or size > self.max_bytes
                or not (at_once or self._came_recently(key, size))
            ):
                return None
            self._in_work.add(key)
        try:
            copy = whole.only(np.flatnonzero(on).tolist())
            self._finish()
            with self._lock:
                self._copies.put(key, copy, copy.nbytes, limit=self.max_bytes)
        finally:
            with self._lock:
                self._in_work.discard(key)
        return copy

    def _came_recently(self, key: PartsKey, size: int) -> bool:
        if key in self._seen:
            self._seen.remove(key)
            return True
        self._seen.put(key, None, size, limit=self.max_bytes)
        return False
