"""A request in the queue, its items by lane, and the lanes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import accumulate, repeat
from typing import Generic, NamedTuple, TypeVar

from service.engine.sharing import Share

P = TypeVar("P")
T = TypeVar("T")


class Item(NamedTuple, Generic[P]):
    """One sequence to be scored: its length (>= 1), the lane it must run in, and what the engine needs."""

    tokens: int
    lane: Hashable
    payload: P


class TakenItem(NamedTuple, Generic[P, T]):
    """An item that left the queue in a batch: its owner, and its position among the items pushed."""

    owner: T
    position: int
    item: Item[P]


_new_taken_item = partial(tuple.__new__, TakenItem)  # its own constructor is Python code


class QueuedRequest(Generic[P, T]):
    """One request in the queue.

    since: when it came. deadline: when it is removed if it still waits. size: its tokens that came so far.
    items, tokens: the part of it that still waits. parts: those items, one part per lane.
    later_tokens: at most so many tokens of it are still to come, in later rounds.
    """

    __slots__ = ("deadline", "items", "later_tokens", "owner", "parts", "share", "since", "size", "tokens")

    def __init__(
        self, owner: T, since: float, deadline: float, share: Share, *, later_tokens: int = 0
    ) -> None:
        self.owner = owner
        self.since = since
        self.deadline = deadline
        self.items = self.tokens = self.size = 0
        self.later_tokens = later_tokens
        self.share = share
        self.parts: list[LanePart[P, T]] = []


class LanePart(Generic[P, T]):
    """The items of one request in one lane, shortest first; `items` is empty once none waits.

    arrival: a number that grows from part to part. next: index of the first item that still waits.
    ends: ends[i] is the tokens of the first i items. positions: of the items among those pushed.
    """

    __slots__ = ("arrival", "ends", "items", "lane", "next", "positions", "request")

    def __init__(
        self,
        request: QueuedRequest[P, T],
        lane: Hashable,
        arrival: int,
        items: Sequence[Item[P]],
        positions: list[int],
    ) -> None:
        lengths = [item.tokens for item in items]
        positions.sort(key=lengths.__getitem__)
        self.request = request
        self.lane = lane
        self.arrival = arrival
        self.positions = positions
        self.items = [items[position] for position in positions]
        self.ends = list(accumulate([lengths[position] for position in positions], initial=0))
        self.next = 0

    @property
    def tokens(self) -> int:
        """Tokens of the items that still wait."""
        return self.ends[-1] - self.ends[self.next]

    @property
    def by_age(self) -> tuple[float, int]:
        """Its place in the order by age: when its request came; then parts in the order of their arrival."""
        return self.request.since, self.arrival

    @property
    def is_taken(self) -> bool:
        """Whether every item has been taken."""
        return self.next == len(self.positions)

    def take(self, room: int, *, at_least_one: bool) -> tuple[list[TakenItem[P, T]], int]:
        """Take the shortest items that fit the room, and return them with their tokens."""
        first, ends = self.next, self.ends
        stop = bisect_right(ends, ends[first] + room) - 1
        if stop <= first:
            if not at_least_one:
                return [], 0
            stop = first + 1
        entries = zip(repeat(self.request.owner), self.positions[first:stop], self.items[first:stop])
        taken: list[TakenItem[P, T]] = list(map(_new_taken_item, entries))
        self.next = stop
        return taken, ends[stop] - ends[first]


# (finish under sharing, or the time at which the request came; arrival; part)
HeapEntry = tuple[float, int, LanePart[P, T]]


class Lane(Generic[P, T]):
    """The parts that wait in one lane.

    parts: by arrival. heap, by_age: heaps of the same parts, in the fair order and by age. A part that has
        left stays in a heap until it comes first or most of the heap has left.
    """

    __slots__ = ("by_age", "heap", "parts")

    def __init__(self) -> None:
        self.parts: dict[int, LanePart[P, T]] = {}
        self.heap: list[HeapEntry[P, T]] = []
        self.by_age: list[HeapEntry[P, T]] = []

    def add(self, part: LanePart[P, T]) -> None:
        """Add a part."""
        self.parts[part.arrival] = part
        heappush(self.heap, (part.request.share.finish, part.arrival, part))
        heappush(self.by_age, (*part.by_age, part))

    def remove(self, part: LanePart[P, T]) -> None:
        """Remove a part of which nothing waits."""
        del self.parts[part.arrival]
        for heap in (self.heap, self.by_age):
            if len(heap) > 2 * len(self.parts) + 16:
                heap[:] = [entry for entry in heap if entry[2].items]
                heapify(heap)

    def oldest(self) -> LanePart[P, T]:
        """Return the part whose request came first."""
        while not self.by_age[0][2].items:
            heappop(self.by_age)
        return self.by_age[0][2]


def positions_by_lane(items: Sequence[Item[P]]) -> dict[Hashable, list[int]]:
    """Return the positions of the items of each lane."""
    by_lane: dict[Hashable, list[int]] = {}
    lane: Hashable = None
    positions: list[int] = []
    for position, item in enumerate(items):
        if item.lane is not lane or not by_lane:  # most requests have one lane: hash it once
            lane = item.lane
            positions = by_lane.setdefault(lane, [])
        positions.append(position)
    return by_lane
