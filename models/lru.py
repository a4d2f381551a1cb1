"""A bounded mapping that evicts what was least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LeastRecentlyUsed(Generic[K, V]):
    """A mapping whose least recently used entries are evicted first. Threads need a lock around it.

    cost: of all entries together, in the unit of `put`: bytes, or 1 for each entry.
    """

    def __init__(self) -> None:
        self.cost = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used now; None if there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: K, value: V, cost: int = 1, *, limit: int) -> None:
        """Store a value as the most recently used, and evict others until their costs are at most `limit`."""
        self.remove(key)
        self._entries[key] = (value, cost)
        self.cost += cost
        while self.cost > limit:
            _, (_, evicted) = self._entries.popitem(last=False)
            self.cost -= evicted

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.cost = 0

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        if key in self._entries:
            self.cost -= self._entries.pop(key)[1]
