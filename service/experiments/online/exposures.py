"""Remembers the units that were exposed lately, so that only a unit's first request is logged."""

from __future__ import annotations

from collections.abc import Hashable


class RecentlySeen:
    """A set that forgets. It knows the latest `capacity` members and keeps at most twice as many."""

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._new: set[Hashable] = set()
        self._old: set[Hashable] = set()

    def add(self, member: Hashable) -> bool:
        """Add a member and return whether it is new. A member that comes again stays known for longer."""
        if member in self._new:
            return False
        is_known = member in self._old
        if len(self._new) >= self._capacity:
            self._old, self._new = self._new, set()
        self._new.add(member)
        return not is_known

    def forget(self, member: Hashable) -> None:
        """Remove a member, so that it is new again."""
        self._new.discard(member)
        self._old.discard(member)
