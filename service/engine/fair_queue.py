"""The fair queue: which items go into the next batch.

Requests are served one after the other, in the order in which they would be done if they shared the device
equally: the Fair Sojourn Protocol (Friedman and Henderson, "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). So a short request overtakes a long one that came before it, equal requests are served first
come, first served, and nobody is done later than under sharing, whoever comes after.

A request is answered as a whole, so the order within it does not matter: its items wait shortest first, and a
batch takes them in that order. Neighbours are then alike in length at no cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

from service.engine.queued import (
    HeapEntry,
    Item,
    Lane,
    LanePart,
    QueuedRequest,
    TakenItem,
    positions_by_lane,
)
from service.engine.sharing import ProcessorSharing

P = TypeVar("P")
T = TypeVar("T")

AGED_PART = 4
"""Once something is past its age, a quarter of each batch, and every fourth choice of a lane, go by age."""


class FairQueue(Generic[P, T]):
    """Items of many requests in several lanes. `items` of them wait, with `tokens` in all.

    A request enters and leaves in O(log requests). It may come in rounds: it has its place in the fair order
    as if all its work had come at once, and at most `later_tokens` of all requests are still to come.

    Args:
        max_age_s: requests that have waited longer get a quarter of each batch of their lane, the oldest
            first, and every fourth batch is of the oldest one's lane. So a request that shorter ones overtake
            again and again still gets a quarter of the device. A batch that is not to be filled up gives the
            oldest its quarter only if earlier batches gave it less than that.
    """

    def __init__(self, *, max_age_s: float) -> None:
        self.tokens = 0
        self.items = 0
        self.later_tokens = 0
        self.sharing = ProcessorSharing()
        self._max_age_s = max_age_s
        self._arrivals = 0
        self._batches = 0
        # By how many tokens the oldest request is behind its quarter; negative if it is ahead.
        self._owed_by_age = 0.0
        self._lanes: dict[Hashable, Lane[P, T]] = {}

    def push(
        self,
        owner: T,
        items: Sequence[Item[P]],
        *,
        now: float,
        deadline: float | None = None,
        later_tokens: int = 0,
    ) -> QueuedRequest[P, T]:
        """Add a new request of at least one item. `now` must not go backwards.

        later_tokens: the tokens, at most, that `extend` will add to it.
        """
        tokens = sum([item.tokens for item in items])
        share = self.sharing.enter(tokens + later_tokens)
        request: QueuedRequest[P, T] = QueuedRequest(
            owner, now, inf if deadline is None else deadline, share, later_tokens=later_tokens
        )
        self.later_tokens += later_tokens
        self._add(request, items, tokens)
        return request

    def extend(self, request: QueuedRequest[P, T], items: Sequence[Item[P]], later_tokens: int) -> None:
        """Add the next round of a request of which nothing waits; it keeps its place in the fair order.

        later_tokens: the tokens, at most, of the rounds after this one.
        """
        tokens = sum(item.tokens for item in items)
        self.later_tokens += later_tokens - request.later_tokens
        request.later_tokens = later_tokens
        share = request.share
        if share.done and share.finish > self.sharing.time:  # the queue was empty, so all shares were dropped
            request.share = self.sharing.enter(tokens + later_tokens)
            request.size = 0
        else:  # it announced its largest size
            self.sharing.shorten(share, request.size + tokens + later_tokens)
        self._add(request, items, tokens)

    def ahead_of(self, tokens: int) -> float:
        """Return how many waiting tokens, at most, would be served before a new request of `tokens`.

        Under sharing, no other request gets more than `tokens` before the new one is done.
        """
        return min(self.tokens + self.later_tokens, self.sharing.active * tokens)

    def ahead_of_request(self, request: QueuedRequest[P, T]) -> int:
        """Return how many waiting tokens would be served before another round of a request."""
        finish = request.share.finish
        return sum(
            part.tokens
            for lane in self._lanes.values()
            for part in lane.parts.values()
            if part.request.share.finish < finish
        )

    def remove(self, request: QueuedRequest[P, T]) -> None:
        """Remove the part of a request that still waits."""
        if not request.items and not request.later_tokens:
            return
        self.sharing.shorten(request.share, request.size - request.tokens)
        self.items -= request.items
        self.tokens -= request.tokens
        self.later_tokens -= request.later_tokens
        request.items = request.tokens = request.later_tokens = 0
        for part in list(request.parts):
            self._leave(part)
        self._clear_sharing_if_empty()

    def take(self, budget: int, now: float, *, fill: bool = True) -> tuple[list[TakenItem[P, T]], list[T]]:
        """Take the next batch, all of one lane; also return the owners of requests removed as too late.

        The batch holds at most `budget` tokens, or one item that is longer: as much as fits of the lane's
        first request in the fair order, then of the next.

        fill: whether room that is left is filled with a part of a request that the batch does not finish. If
            not, the batch is smaller, and the requests that it finishes are answered sooner.
        """
        late: list[T] = []
        is_aged = self.oldest_age_s(now) > self._max_age_s
        lane = self._choose_lane(now, is_aged, late)
        if lane is None:
            return [], late
        batch: list[TakenItem[P, T]] = []
        tokens_by_age = 0
        if is_aged and (fill or self._owed_by_age > 0):
            tokens_by_age = self._take_aged(lane, budget // AGED_PART, now, batch, late)
        room = budget - tokens_by_age
        oldest = lane.oldest() if lane.parts else None
        has_finished_part = False
        while (head := self._head(lane, now, late)) is not None:
            part = head[2]
            if has_finished_part and not fill and part.tokens > room:
                break
            tokens = self._take_from(part, room, batch)
            room -= tokens
            tokens_by_age += tokens if part is oldest else 0
            if part.items:
                break
            has_finished_part = True
        owed = self._owed_by_age + (budget - room) / AGED_PART - tokens_by_age if is_aged else 0.0
        self._owed_by_age = max(-float(budget), min(float(budget), owed))
        self._batches += 1
        self.sharing.advance(budget - room)
        self._clear_sharing_if_empty()
        return batch, late

    def oldest_age_s(self, now: float) -> float:
        """Return how long the oldest request with work not begun has waited; 0 if nothing waits."""
        return max((now - lane.oldest().request.since for lane in self._lanes.values()), default=0.0)

    def _add(self, request: QueuedRequest[P, T], items: Sequence[Item[P]], tokens: int) -> None:
        for lane_name, positions in positions_by_lane(items).items():
            self._arrivals += 1
            part = LanePart(request, lane_name, self._arrivals, items, positions)
            request.parts.append(part)
            self._lanes.setdefault(lane_name, Lane()).add(part)
        request.items += len(items)
        request.tokens += tokens
        request.size += tokens
        self.items += len(items)
        self.tokens += tokens

    def _choose_lane(self, now: float, is_aged: bool, late: list[T]) -> Lane[P, T] | None:
        """Return the lane of the first request in the fair order, or, every fourth time, of the oldest."""
        heads = [
            (head, lane)
            for lane in list(self._lanes.values())
            if (head := self._head(lane, now, late)) is not None
        ]
        if not heads:
            self._clear_sharing_if_empty()
            return None
        if is_aged and self._batches % AGED_PART == 0:
            for _, lane in heads:
                while self._remove_if_late(lane.oldest(), now, late):  # it may be behind the lane's head
                    pass
            oldest_lane = min((lane for _, lane in heads), key=lambda lane: lane.oldest().by_age)
            if self._is_past_age(oldest_lane.oldest(), now):  # what was past its age may have been late
                return oldest_lane
        return min(heads, key=itemgetter(0))[1]

    def _head(self, lane: Lane[P, T], now: float, late: list[T]) -> HeapEntry[P, T] | None:
        """Return the lane's first entry in the fair order, after removing what is gone or late before it."""
        while lane.heap:
            part = lane.heap[0][2]
            if not part.items:
                heappop(lane.heap)
            elif not self._remove_if_late(part, now, late):
                return lane.heap[0]
        return None

    def _remove_if_late(self, part: LanePart[P, T], now: float, late: list[T]) -> bool:
        """Remove a part's request if its deadline has passed; return whether it had."""
        if part.request.deadline > now:
            return False
        late.append(part.request.owner)
        self.remove(part.request)
        return True

    def _is_past_age(self, part: LanePart[P, T], now: float) -> bool:
        return now - part.request.since > self._max_age_s

    def _take_aged(
        self,
        lane: Lane[P, T],
        room: int,
        now: float,
        batch: list[TakenItem[P, T]],
        late: list[T],
    ) -> int:
        """Take what is past its age and fits the room, oldest first, at least one item; return its tokens."""
        taken_tokens = 0
        while lane.parts and (not batch or taken_tokens < room):
            part = lane.oldest()
            if not self._is_past_age(part, now):
                break
            if self._remove_if_late(part, now, late):
                continue
            taken_tokens += self._take_from(part, room - taken_tokens, batch)
            if part.items:
                break
        return taken_tokens

    def _take_from(self, part: LanePart[P, T], room: int, batch: list[TakenItem[P, T]]) -> int:
        """Move a part's shortest items that fit the room into the batch; return their tokens.

        An empty batch takes one item in any case.
        """
        taken, tokens = part.take(room, at_least_one=not batch)
        batch += taken
        part.request.items -= len(taken)
        part.request.tokens -= tokens
        self.items -= len(taken)
        self.tokens -= tokens
        if part.is_taken:
            self._leave(part)
        return tokens

    def _leave(self, part: LanePart[P, T]) -> None:
        """Remove a part of which nothing waits from its lane, and the lane if it was the last."""
        part.items = []
        part.request.parts.remove(part)
        lane = self._lanes[part.lane]
        lane.remove(part)
        if not lane.parts:
            del self._lanes[part.lane]

    def _clear_sharing_if_empty(self) -> None:
        """Forget what the imagined sharing owes if nothing waits."""
        if not self.items:
            self.sharing.clear()
