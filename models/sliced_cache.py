"""A cache of weights that hold only some heads, or some feed-forward units, of a layer.

Cutting copies weights, so it is done only for sets that come again, and the copies stay in a bounded cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeAlias, TypeVar, cast


class Sliceable(Protocol):
    """Heads or units of a layer. count: how many. nbytes: of their weights."""

    @property
    def count(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def cut(self, live: Sequence[int]) -> Self:
        """Return those at the positions `live` alone."""


S = TypeVar("S", bound=Sliceable)

Key: TypeAlias = tuple[int, type[Sliceable], tuple[int, ...]]
"""A set of live heads or units of one layer."""


class SlicedCache:
    """A bounded cache of weights cut down to a set of live heads or units. Threads may share it.

    A set is cut when it comes for the second time, if the sets that came in between would not have filled the
    cache. So a mask that comes once copies nothing, and masks that take turns, more of them than the cache
    holds, do not evict each other. The least recently used set is evicted first.
    max_bytes: how much the cached weights may take up together; may change at any time.
    finish: waits for the device, so that other threads' streams may use what this thread's stream has cut.
    """

    def __init__(self, max_bytes: int, finish: Callable[[], None] = lambda: None) -> None:
        self.max_bytes = max_bytes
        self._finish = finish
        self.nbytes = 0
        self._cut: OrderedDict[Key, Sliceable] = OrderedDict()
        self._seen: OrderedDict[Key, int] = OrderedDict()
        """The sets that came and were not cut, and the bytes that they would take."""
        self._seen_bytes = 0
        self._in_work: set[Key] = set()
        """The sets that a thread is cutting now."""
        self._lock = threading.Lock()

    def get(self, layer: int, whole: S, live: tuple[int, ...], *, at_once: bool = False) -> S | None:
        """Return the heads (or units) `live` of `layer` alone, or None.

        None means that it does not pay to cut them yet, or that another thread is cutting them: nobody waits
        for its copies and its device. at_once: it is known that the set will come again.
        """
        key = (layer, type(whole), live)
        with self._lock:
            cached = self._cut.get(key)
            if cached is not None:
                self._cut.move_to_end(key)
                return cast(S, cached)
            size = whole.nbytes * len(live) // whole.count
            if key in self._in_work or size > self.max_bytes:
                return None
            if not (at_once or self._came_lately(key, size)):
                return None
            self._in_work.add(key)
        try:
            cut = whole.cut(live)
            self._finish()
            with self._lock:
                self._add(key, cut)
        finally:
            with self._lock:
                self._in_work.discard(key)
        return cut

    def _came_lately(self, key: Key, size: int) -> bool:
        if key in self._seen:
            self._seen_bytes -= self._seen.pop(key)
            return True
        self._seen[key] = size
        self._seen_bytes += size
        while self._seen_bytes > self.max_bytes:
            self._seen_bytes -= self._seen.popitem(last=False)[1]
        return False

    def _add(self, key: Key, cut: Sliceable) -> None:
        self._cut[key] = cut
        self.nbytes += cut.nbytes
        while self.nbytes > self.max_bytes:
            self.nbytes -= self._cut.popitem(last=False)[1].nbytes
