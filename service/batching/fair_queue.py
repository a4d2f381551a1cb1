"""The waiting line: which items go into the next batch.

Requests are served in the order in which they would be done if they shared the device equally, one after the
other: the Fair Sojourn Protocol (Friedman and Henderson, "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). A short request so passes the long one that came before it, equal requests are served first
come, first served, and nobody is done later than under sharing, whoever comes after.

Within a request the order is of no consequence, for it is answered as a whole: its items wait shortest first,
and a batch takes them in that order, which makes neighbours alike in length at no cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from service.batching.sharing import Share, Sharing

P = TypeVar("P")
T = TypeVar("T")

AGED_PART = 4
"""One in so many: the part of each batch, and the batches, that go by age once something is past its age."""


class Item(NamedTuple, Generic[P]):
    """One sequence to be scored: its length (>= 1), the lane it must run in, and what the engine needs."""

    tokens: int
    lane: Hashable
    payload: P


class Entry(NamedTuple, Generic[P, T]):
    """An item that was taken: whose it is and where it stood among the items pushed."""

    owner: T
    position: int
    item: Item[P]


class Dropped(NamedTuple, Generic[T]):
    """A flow that was removed because its deadline had passed, with this many items still waiting."""

    owner: T
    items: int


class Flow(Generic[P, T]):
    """One request in the line. `items` and `tokens` are what still waits of it."""

    __slots__ = ("deadline", "items", "owner", "share", "since", "size", "strands", "tokens")

    def __init__(
        self, owner: T, since: float, deadline: float, items: int, tokens: int, share: Share
    ) -> None:
        self.owner = owner
        self.since = since
        self.deadline = deadline
        self.items = items
        self.tokens = self.size = tokens
        self.share = share
        self.strands: list[_Strand[P, T]] = []


class _Strand(Generic[P, T]):
    """The items of one flow in one lane, shortest first; those before `next` have been taken.

    ends: ends[i] is the tokens of the first i items.
    """

    __slots__ = ("arrival", "ends", "flow", "items", "lane", "next", "positions")

    def __init__(
        self, flow: Flow[P, T], lane: Hashable, arrival: int, items: Sequence[Item[P]], positions: list[int]
    ) -> None:
        positions.sort(key=lambda position: items[position].tokens)
        self.flow = flow
        self.lane = lane
        self.arrival = arrival
        self.positions = positions
        self.items = [items[position] for position in positions]
        self.ends = list(accumulate((item.tokens for item in self.items), initial=0))
        self.next = 0


_Place = tuple[
    float, int, _Strand[P, T]
]  # (finish under sharing, arrival, strand): compares as the fair order


class _Lane(Generic[P, T]):
    """A heap of strands by their place, and the same strands by arrival."""

    __slots__ = ("line", "strands")

    def __init__(self) -> None:
        self.line: list[_Place[P, T]] = []
        self.strands: OrderedDict[int, _Strand[P, T]] = OrderedDict()

    def oldest(self) -> _Strand[P, T]:
        """The strand that has waited longest (one clock for all: arrivals are in order of time)."""
        return self.strands[next(iter(self.strands))]


class FairQueue(Generic[P, T]):
    """Items of many flows in several lanes. `tokens` of `items` wait; O(log flows) to enter and to leave.

    Args:
        max_age_s: once something has waited longer, a quarter of each batch of its lane goes to what has,
            first come, first served, and so does every fourth choice of a lane: what shorter requests pass
            over and over again still gets a quarter of the device. Batches that are not to be filled owe it
            that much as well, and no more where it got its part of the batches before.
    """

    def __init__(self, *, max_age_s: float) -> None:
        self.tokens = 0
        self.items = 0
        self.sharing = Sharing()
        self._max_age_s = max_age_s
        self._arrivals = 0
        self._batches = 0
        self._owed = 0.0  # tokens that the oldest, past its age, is behind its part; negative: ahead of it
        self._lanes: dict[Hashable, _Lane[P, T]] = {}

    def push(
        self, owner: T, items: Sequence[Item[P]], *, now: float, deadline: float | None = None
    ) -> Flow[P, T]:
        """Let the items of a new request wait. At least one; `now` must not go backwards."""
        tokens = sum(item.tokens for item in items)
        share = self.sharing.enter(tokens)
        flow: Flow[P, T] = Flow(owner, now, inf if deadline is None else deadline, len(items), tokens, share)
        by_lane: dict[Hashable, list[int]] = {}
        last: Hashable = None
        for position, item in enumerate(items):
            if item.lane is not last or not by_lane:  # most requests have one lane: hashed once
                last = item.lane
                positions = by_lane.setdefault(last, [])
            positions.append(position)
        for lane_name, positions in by_lane.items():
            self._arrivals += 1
            strand = _Strand(flow, lane_name, self._arrivals, items, positions)
            flow.strands.append(strand)
            lane = self._lanes.setdefault(lane_name, _Lane())
            lane.strands[strand.arrival] = strand
            heappush(lane.line, (share.finish, strand.arrival, strand))
        self.items += flow.items
        self.tokens += tokens
        return flow

    def ahead_of(self, tokens: int) -> float:
        """At most so many of the waiting tokens would be served before a request of `tokens` that came now.

        Under sharing none of the others gets more than that before it is done.
        """
        return min(self.tokens, self.sharing.active * tokens)

    def remove(self, flow: Flow[P, T]) -> int:
        """Forget what still waits of a flow; the number of items forgotten."""
        forgotten = flow.items
        if not forgotten:
            return 0
        self.sharing.shorten(flow.share, flow.size - flow.tokens)
        self.items -= flow.items
        self.tokens -= flow.tokens
        flow.items = flow.tokens = 0
        for strand in flow.strands:
            if strand.items:
                self._leave(strand)
        self._settle()
        return forgotten

    def take(
        self, budget: int, now: float, *, fill: bool = True
    ) -> tuple[list[Entry[P, T]], list[Dropped[T]]]:
        """The next batch, all of one lane, and what was found too late to be in it.

        At most `budget` tokens, or one item that is longer: of the lane's first request in the fair order all
        that fits, then of the next.
        fill: whether what has room left takes part of a request that will not be done with it; where it does
            not, who is done with the batch has not waited for that part.
        """
        late: list[Dropped[T]] = []
        aged = self.oldest_age_s(now) > self._max_age_s
        lane = self._choose(now, aged, late)
        if lane is None:
            return [], late
        batch: list[Entry[P, T]] = []
        left = budget
        if aged and (fill or self._owed > 0):
            left -= self._take_aged(lane, budget // AGED_PART, now, batch, late)
        by_age = budget - left
        oldest = lane.oldest() if lane.strands else None
        some_are_done = False
        while (place := self._head(lane, now, late)) is not None:
            strand = place[2]
            if some_are_done and not fill and strand.ends[-1] - strand.ends[strand.next] > left:
                break
            taken = self._take_from(strand, left, batch)
            left -= taken
            by_age += taken if strand is oldest else 0
            if strand.items:
                break
            some_are_done = True
        owed = self._owed + (budget - left) / AGED_PART - by_age if aged else 0.0
        self._owed = max(-float(budget), min(float(budget), owed))
        self._batches += 1
        self.sharing.advance(budget - left)
        self._settle()
        return batch, late

    def oldest_age_s(self, now: float) -> float:
        """How long the oldest request with work not begun has waited; 0 where there is none."""
        return max((now - lane.oldest().flow.since for lane in self._lanes.values()), default=0.0)

    def _choose(self, now: float, aged: bool, late: list[Dropped[T]]) -> _Lane[P, T] | None:
        """The lane of the first request in the fair order, or, when it is age's turn, of the oldest one."""
        heads = [
            (place, lane)
            for lane in list(self._lanes.values())
            if (place := self._head(lane, now, late)) is not None
        ]
        if not heads:
            self._settle()
            return None
        if aged and self._batches % AGED_PART == 0:
            for _, lane in heads:
                while self._is_late(lane.oldest(), now, late):  # it may stand behind the lane's head
                    pass
            longest = min((lane for _, lane in heads), key=lambda lane: lane.oldest().arrival)
            if now - longest.oldest().flow.since > self._max_age_s:  # not only what was too late
                return longest
        return min(heads, key=itemgetter(0))[1]

    def _head(self, lane: _Lane[P, T], now: float, late: list[Dropped[T]]) -> _Place[P, T] | None:
        """The lane's first place in the fair order, once what is gone or late has been cleared away."""
        while lane.line:
            strand = lane.line[0][2]
            if not strand.items:
                heappop(lane.line)
            elif not self._is_late(strand, now, late):
                return lane.line[0]
        return None

    def _is_late(self, strand: _Strand[P, T], now: float, late: list[Dropped[T]]) -> bool:
        """Whether its deadline has passed; then its request has been removed."""
        if strand.flow.deadline > now:
            return False
        late.append(Dropped(strand.flow.owner, self.remove(strand.flow)))
        return True

    def _take_aged(
        self, lane: _Lane[P, T], room: int, now: float, batch: list[Entry[P, T]], late: list[Dropped[T]]
    ) -> int:
        """Take what is past its age, oldest first, and fits the room, one item in any case; its tokens."""
        took = 0
        while lane.strands and (not batch or took < room):
            strand = lane.oldest()
            if now - strand.flow.since <= self._max_age_s:
                break
            if self._is_late(strand, now, late):
                continue
            took += self._take_from(strand, room - took, batch)
            if strand.items:
                break
        return took

    def _take_from(self, strand: _Strand[P, T], room: int, batch: list[Entry[P, T]]) -> int:
        """Take a strand's shortest items that fit the room, the batch's first in any case; their tokens."""
        first, ends = strand.next, strand.ends
        stop = bisect_right(ends, ends[first] + room) - 1
        if stop <= first:
            if batch:
                return 0
            stop = first + 1
        flow, taken = strand.flow, ends[stop] - ends[first]
        batch += [
            Entry(flow.owner, strand.positions[index], strand.items[index]) for index in range(first, stop)
        ]
        strand.next = stop
        flow.items -= stop - first
        flow.tokens -= taken
        self.items -= stop - first
        self.tokens -= taken
        if stop == len(strand.items):
            self._leave(strand)
        return taken

    def _leave(self, strand: _Strand[P, T]) -> None:
        """Take a strand that has nothing left off its lane, and the lane with its last strand."""
        strand.items = []
        lane = self._lanes[strand.lane]
        del lane.strands[strand.arrival]
        if not lane.strands:
            del self._lanes[strand.lane]
        elif len(lane.line) > 2 * len(lane.strands) + 16:  # the heap still names what is gone
            lane.line = [place for place in lane.line if place[2].items]
            heapify(lane.line)

    def _settle(self) -> None:
        """Where nothing waits, the sharing owes nothing either."""
        if not self.items:
            self.sharing.clear()
