"""Which units were exposed a moment ago, so that a unit's every request does not become an event."""

from __future__ import annotations

from collections.abc import Hashable


class RecentlySeen:
    """A set that forgets: the latest `capacity` members are known, at most twice as many are kept."""

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._new: set[Hashable] = set()
        self._old: set[Hashable] = set()

    def add(self, member: Hashable) -> bool:
        """Whether the member is new. One that is seen again stays known for longer."""
        if member in self._new:
            return False
        is_known = member in self._old
        if len(self._new) >= self._capacity:
            self._old, self._new = self._new, set()
        self._new.add(member)
        return not is_known

    def forget(self, member: Hashable) -> None:
        """As if it had not been seen."""
        self._new.discard(member)
        self._old.discard(member)
