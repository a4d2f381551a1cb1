"""The waiting line: which items go into the next batch.

Requests share the device by tokens, as WF2Q+ does it (Bennett and Zhang, "Hierarchical packet fair queueing
algorithms", 1997). The queue keeps a virtual time, the tokens that each waiting request should have had by
now. In virtual time an item starts where its request's previous item finished, and a new request starts now;
the *fair order* is by start, ties by arrival. So a short request comes ahead of the tail of a long one, and
since virtual time only grows, the tail comes due as well, whatever arrives after it.

Within a request the order is of no consequence, for it is answered as a whole: its items wait shortest first,
and a batch takes them in that order, which makes neighbours alike in length at no cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")
T = TypeVar("T")

WINDOW_BUDGETS = 3
WINDOW_TOKENS = 8192
"""How far grouping by length looks down the fair order: so many batches, but not so far past the first."""


@dataclass(frozen=True, slots=True)
class Item(Generic[P]):
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

    __slots__ = ("deadline", "items", "owner", "since", "strands", "tokens")

    def __init__(self, owner: T, since: float, deadline: float, items: int) -> None:
        self.owner = owner
        self.since = since
        self.deadline = deadline
        self.items = items
        self.tokens = 0
        self.strands: list[_Strand[P, T]] = []


class _Strand(Generic[P, T]):
    """The items of one flow in one lane, shortest first; those before `next` have been taken."""

    __slots__ = (
        "arrival",
        "flow",
        "items",
        "lane",
        "lengths",
        "next",
        "positions",
        "reach",
        "scan",
        "starts",
    )

    def __init__(
        self, flow: Flow[P, T], lane: Hashable, arrival: int, items: Sequence[Item[P]], positions: list[int]
    ) -> None:
        positions.sort(key=lambda position: items[position].tokens)
        self.flow = flow
        self.lane = lane
        self.arrival = arrival
        self.positions = positions
        self.items = [items[position] for position in positions]
        self.lengths = [item.tokens for item in self.items]
        self.starts: list[float] = []  # virtual time
        self.next = 0
        self.scan = 0  # how far the window being looked at reaches
        self.reach = 0  # the largest distance in length met on the way there


_Place = tuple[float, int, _Strand[P, T]]  # (start, arrival, strand): compares as the fair order
_Candidate = tuple[_Strand[P, T], int]  # an item of a strand, by its index there


class _Lane(Generic[P, T]):
    """A heap of strands by their first item's place, and the same strands by arrival."""

    __slots__ = ("line", "strands")

    def __init__(self) -> None:
        self.line: list[_Place[P, T]] = []
        self.strands: OrderedDict[int, _Strand[P, T]] = OrderedDict()

    def oldest(self) -> float:
        """When the flow that has waited longest came (one clock for all: arrivals are in order of time)."""
        return self.strands[next(iter(self.strands))].flow.since


class FairQueue(Generic[P, T]):
    """Items of many flows in several lanes. `tokens` of `items` wait; O(log flows) to enter and to leave.

    Args:
        max_age_s: while anything has waited longer, lengths do not count: batches follow the fair order, so
            that what is overdue is not overtaken in its lane, and once due by one batch of each other lane
            at most (the one that was formed for an item before it and had room).
    """

    def __init__(self, *, max_age_s: float) -> None:
        self.tokens = 0
        self.items = 0
        self.virtual_time = 0.0
        self._max_age_s = max_age_s
        self._flows = 0
        self._arrivals = 0
        self._lanes: dict[Hashable, _Lane[P, T]] = {}

    def push(
        self, owner: T, items: Sequence[Item[P]], *, now: float, deadline: float | None = None
    ) -> Flow[P, T]:
        """Let the items of a new request wait. At least one; `now` must not go backwards."""
        flow: Flow[P, T] = Flow(owner, now, inf if deadline is None else deadline, len(items))
        by_lane: dict[Hashable, list[int]] = {}
        for position, item in enumerate(items):
            by_lane.setdefault(item.lane, []).append(position)
        start = self.virtual_time
        for lane_name, positions in by_lane.items():
            self._arrivals += 1
            strand = _Strand(flow, lane_name, self._arrivals, items, positions)
            strand.starts = list(accumulate(strand.lengths, initial=start))
            start = strand.starts.pop()
            flow.tokens += sum(strand.lengths)
            flow.strands.append(strand)
            lane = self._lanes.setdefault(lane_name, _Lane())
            lane.strands[strand.arrival] = strand
            heappush(lane.line, (strand.starts[0], strand.arrival, strand))
        self._flows += 1
        self.items += flow.items
        self.tokens += flow.tokens
        return flow

    def remove(self, flow: Flow[P, T]) -> int:
        """Forget what still waits of a flow; the number of items forgotten."""
        forgotten = flow.items
        if not forgotten:
            return 0
        self._flows -= 1
        self.items -= flow.items
        self.tokens -= flow.tokens
        flow.items = flow.tokens = 0
        for strand in flow.strands:
            if strand.items:
                self._leave(strand)
                lane = self._lanes.get(strand.lane)
                # The heap still names the strand; it is skipped there, and swept out before it can pile up.
                if lane and len(lane.line) > 2 * len(lane.strands) + 16:
                    lane.line = [place for place in lane.line if place[2].items]
                    heapify(lane.line)
        return forgotten

    def take(self, budget: int, now: float) -> tuple[list[Entry[P, T]], list[Dropped[T]]]:
        """The next batch, all of one lane, and what was found too late to be in it.

        At most `budget` tokens, or one item that is longer. The lane is that of the first item in the fair
        order; that item is in the batch, then come the items that are due, then those ahead of their time,
        among each the nearest in length to the first.
        """
        late: list[Dropped[T]] = []
        heads = [
            (place, lane)
            for lane in list(self._lanes.values())
            if (place := self._head(lane, now, late)) is not None
        ]
        if not heads:
            return [], late
        (start, _, _), lane = min(heads, key=itemgetter(0))
        self.virtual_time = max(self.virtual_time, start)

        overdue = self.oldest_age_s(now) > self._max_age_s
        reach = budget if overdue else min(WINDOW_BUDGETS * budget, budget + WINDOW_TOKENS)
        window, strands = self._window(lane, reach, now, late)
        if not overdue:
            self._group_by_length(window)
        batch = self._fill(window, budget)
        for strand in strands:
            if strand.next == len(strand.items):
                self._leave(strand)
            else:
                heappush(lane.line, (strand.starts[strand.next], strand.arrival, strand))
        return batch, late

    def oldest_age_s(self, now: float) -> float:
        """How long the oldest request with work not begun has waited; 0 where there is none."""
        return max((now - lane.oldest() for lane in self._lanes.values()), default=0.0)

    def _head(self, lane: _Lane[P, T], now: float, late: list[Dropped[T]]) -> _Place[P, T] | None:
        """The lane's first place in the fair order, once what is gone or late has been cleared away."""
        while lane.line:
            strand = lane.line[0][2]
            if not strand.items:
                heappop(lane.line)
            elif strand.flow.deadline <= now:
                late.append(Dropped(strand.flow.owner, self.remove(strand.flow)))
            else:
                return lane.line[0]
        return None

    def _window(
        self, lane: _Lane[P, T], reach: int, now: float, late: list[Dropped[T]]
    ) -> tuple[list[_Candidate[P, T]], list[_Strand[P, T]]]:
        """The lane's items in the fair order, up to the one with which they are `reach` tokens or more.

        Also the strands they belong to, which have left the heap: the caller puts them back.
        """
        window: list[_Candidate[P, T]] = []
        strands: list[_Strand[P, T]] = []
        opened: list[_Place[P, T]] = []  # heap of the strands that have more to come than the window holds
        tokens = 0
        while tokens < reach:
            head = self._head(lane, now, late)
            if head and (not opened or head < opened[0]):
                place, heap = head, lane.line
            elif opened:
                place, heap = opened[0], opened
            else:
                break
            heappop(heap)
            strand = place[2]
            if heap is lane.line:
                strands.append(strand)
                strand.scan, strand.reach = strand.next, 0
            # All of this strand that comes before anything else.
            bound = min(lane.line[0][0] if lane.line else inf, opened[0][0] if opened else inf)
            scan, starts = strand.scan, strand.starts
            while True:
                window.append((strand, scan))
                tokens += strand.lengths[scan]
                scan += 1
                if scan == len(starts):
                    break
                if starts[scan] >= bound or tokens >= reach:
                    heappush(opened, (starts[scan], strand.arrival, strand))
                    break
            strand.scan = scan
        return window, strands

    def _group_by_length(self, window: list[_Candidate[P, T]]) -> None:
        """Order the window by: due before ahead of its time, then distance in length to its first item.

        An item counts as far off as the farthest of its own strand before it, which keeps a strand in order.
        """
        wanted = window[0][0].lengths[window[0][1]]
        ranks: list[tuple[bool, int, int]] = []
        for order, (strand, index) in enumerate(window):
            strand.reach = max(strand.reach, abs(strand.lengths[index] - wanted))
            ranks.append((strand.starts[index] > self.virtual_time, strand.reach, order))
        ranks.sort()
        window[:] = [window[order] for _, _, order in ranks]

    def _fill(self, window: list[_Candidate[P, T]], budget: int) -> list[Entry[P, T]]:
        """Take from the window, in its order, what fits the budget; its first item in any case."""
        batch: list[Entry[P, T]] = []
        got: dict[Flow[P, T], int] = {}
        left = budget
        for strand, index in window:
            length = strand.lengths[index]
            if length > left and batch:
                continue  # nor does anything after it in its strand, which is no shorter
            strand.next += 1
            left -= length
            flow = strand.flow
            flow.items -= 1
            flow.tokens -= length
            got[flow] = got.get(flow, 0) + length
            batch.append(Entry(flow.owner, strand.positions[index], strand.items[index]))
            if left <= 0:
                break
        ended = [tokens for flow, tokens in got.items() if not flow.items]
        self.items -= len(batch)
        self.tokens -= budget - left
        self._flows -= len(ended)
        self._advance(budget - left, ended)
        return batch

    def _advance(self, tokens: int, ended: list[int]) -> None:
        """Move virtual time on by a batch's tokens, shared out equally between the flows that waited.

        Those that ended with the batch could use no more than they got of it; the others share the rest.
        """
        flows = self._flows + len(ended)
        for got in sorted(ended):
            if flows == 1 or got * flows >= tokens:
                break
            tokens -= got
            flows -= 1
        self.virtual_time += tokens / flows

    def _leave(self, strand: _Strand[P, T]) -> None:
        """Take a strand that has nothing left off its lane, and the lane with its last strand."""
        strand.items = []
        lane = self._lanes[strand.lane]
        del lane.strands[strand.arrival]
        if not lane.strands:
            del self._lanes[strand.lane]
