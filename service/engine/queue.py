"""The fair queue: which rows go into the next batch.

Requests are served one after the other, in the order in which they would be done if they shared the device
equally: the Fair Sojourn Protocol (Friedman and Henderson, "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). So a short request overtakes a long one that came before it, equal requests are served first
come, first served, and nobody is done later than under sharing, whoever comes after.

A request is answered as a whole, so the order within it does not matter: its rows wait shortest first, and a
batch takes them in that order. Neighbours are then alike in length at no cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import attrgetter

from service.engine.request import Row, Submission
from service.engine.sharing import ProcessorSharing

AGED_PART = 4
"""Once something is past its age, a quarter of each batch, and every fourth choice of a lane, go by age."""


class LanePart:
    """The rows of one request in one lane, shortest first.

    rank: its rank in the fair order: when its request would be done under sharing, then the arrival.
    arrival: a number that grows from part to part. next: index of the first row that still waits.
    """

    __slots__ = ("_ends", "arrival", "lane", "next", "rank", "rows", "submission")

    def __init__(self, submission: Submission, lane: Hashable, arrival: int, rows: Sequence[Row]) -> None:
        self.submission = submission
        self.lane = lane
        self.arrival = arrival
        self.rank = (submission.share.finish, arrival)
        self.rows = sorted(rows, key=attrgetter("tokens"))
        self.next = 0
        self._ends = list(accumulate([row.tokens for row in self.rows], initial=0))

    @property
    def tokens(self) -> int:
        """Tokens of the rows that still wait."""
        return self._ends[-1] - self._ends[self.next]

    @property
    def waits(self) -> bool:
        """Whether any row still waits."""
        return self.next < len(self.rows)

    def take(self, room: int, *, at_least_one: bool) -> list[Row]:
        """Take the shortest rows that fit the room."""
        first = self.next
        stop = bisect_right(self._ends, self._ends[first] + room) - 1
        if at_least_one:
            stop = max(stop, first + 1)
        self.next = max(first, stop)
        return self.rows[first : self.next]


class WaitingLane:
    """The parts that wait in one lane: by arrival, and a heap of them in the fair order.

    A part that has left stays in the heap until it comes first or most of the heap has left.
    """

    __slots__ = ("_heap", "parts")

    def __init__(self) -> None:
        self.parts: dict[int, LanePart] = {}
        self._heap: list[tuple[tuple[float, int], LanePart]] = []

    def add(self, part: LanePart) -> None:
        """Add a part."""
        self.parts[part.arrival] = part
        heappush(self._heap, (part.rank, part))

    def remove(self, part: LanePart) -> None:
        """Remove a part of which nothing waits."""
        del self.parts[part.arrival]
        if len(self._heap) > 2 * len(self.parts) + 16:
            self._heap = [entry for entry in self._heap if entry[1].waits]
            heapify(self._heap)

    def first(self) -> LanePart:
        """Return the first part in the fair order."""
        while not self._heap[0][1].waits:
            heappop(self._heap)
        return self._heap[0][1]

    def oldest(self) -> LanePart:
        """Return the part that came first."""
        return next(iter(self.parts.values()))


class FairQueue:
    """Rows of many requests in several lanes. `rows` of them wait, with `tokens` in all.

    A request enters and leaves in O(log requests).

    max_age_s: requests that have waited longer get a quarter of each batch of their lane, the oldest first,
        and every fourth batch is of the oldest one's lane. So a request that shorter ones overtake again and
        again still gets a quarter of the device. A batch that is not to be filled up gives the oldest its
        quarter only if earlier batches gave it less than that.
    """

    def __init__(self, *, max_age_s: float) -> None:
        self.tokens = 0
        self.rows = 0
        self.sharing = ProcessorSharing()
        self._max_age_s = max_age_s
        self._arrivals = 0
        self._batches = 0
        # By how many tokens the oldest request is behind its quarter; negative if it is ahead.
        self._owed_by_age = 0.0
        self._lanes: dict[Hashable, WaitingLane] = {}

    def push(self, submission: Submission, rows: Sequence[Row]) -> None:
        """Add a new request of at least one row. Its `since` is not before that of an earlier one."""
        submission.share = self.sharing.enter(submission.tokens)
        by_lane: dict[Hashable, list[Row]] = {}
        lane: Hashable = None
        rows_of_lane: list[Row] = []
        for row in rows:
            row.submission = submission
            if row.lane is not lane:  # most requests have one lane, which is then hashed once
                lane = row.lane
                rows_of_lane = by_lane.setdefault(lane, [])
            rows_of_lane.append(row)
        for name, rows_of_lane in by_lane.items():
            self._arrivals += 1
            part = LanePart(submission, name, self._arrivals, rows_of_lane)
            submission.parts.append(part)
            self._lanes.setdefault(name, WaitingLane()).add(part)
        self.rows += len(rows)
        self.tokens += submission.tokens

    def remove(self, submission: Submission) -> None:
        """Remove the part of a request that still waits."""
        if not submission.parts:
            return
        self.sharing.shorten(submission.share, submission.tokens - submission.waiting_tokens)
        self.rows -= submission.waiting_rows
        self.tokens -= submission.waiting_tokens
        submission.waiting_rows = submission.waiting_tokens = 0
        for part in list(submission.parts):
            self._leave(part)
        if not self.rows:
            self.sharing.clear()

    def ahead_of(self, tokens: int) -> float:
        """Return how many waiting tokens, at most, would be served before a new request of `tokens`.

        Under sharing, no other request gets more than `tokens` before the new one is done.
        """
        return min(self.tokens, self.sharing.active * tokens)

    def oldest_age_s(self, now: float) -> float:
        """Return how long the oldest request with work not begun has waited; 0 if nothing waits."""
        return max((now - lane.oldest().submission.since for lane in self._lanes.values()), default=0.0)

    def take(self, budget: int, now: float, *, fill: bool = True) -> list[Row]:
        """Take the next batch, all of one lane; empty if nothing waits.

        The batch holds at most `budget` tokens, or one row that is longer: as much as fits of the lane's
        first request in the fair order, then of the next.

        fill: whether room that is left is filled with a part of a request that the batch does not finish. If
            not, the batch is smaller, and the requests that it finishes are answered sooner.
        """
        if not self.rows:
            return []
        is_aged = self.oldest_age_s(now) > self._max_age_s
        lane = self._choose_lane(is_aged)
        batch: list[Row] = []
        tokens_by_age = 0
        if is_aged and (fill or self._owed_by_age > 0):
            tokens_by_age = self._take_aged(lane, budget // AGED_PART, now, batch)
        room = budget - tokens_by_age
        oldest = lane.oldest() if lane.parts else None
        has_finished_part = False
        while lane.parts:
            part = lane.first()
            if has_finished_part and not fill and part.tokens > room:
                break
            tokens = self._take_from(part, room, batch)
            room -= tokens
            tokens_by_age += tokens if part is oldest else 0
            if part.waits:
                break
            has_finished_part = True
        owed = self._owed_by_age + (budget - room) / AGED_PART - tokens_by_age if is_aged else 0.0
        self._owed_by_age = max(-float(budget), min(float(budget), owed))
        self._batches += 1
        self.sharing.advance(budget - room)
        if not self.rows:  # forget what the imagined sharing owes
            self.sharing.clear()
        return batch

    def _choose_lane(self, is_aged: bool) -> WaitingLane:
        """Return the lane of the first request in the fair order, or, every fourth time, of the oldest."""
        if is_aged and self._batches % AGED_PART == 0:
            return min(self._lanes.values(), key=lambda lane: lane.oldest().arrival)
        return min(self._lanes.values(), key=lambda lane: lane.first().rank)

    def _take_aged(self, lane: WaitingLane, room: int, now: float, batch: list[Row]) -> int:
        """Take what is past its age and fits the room, oldest first, at least one row; return its tokens."""
        taken_tokens = 0
        while lane.parts and (not batch or taken_tokens < room):
            part = lane.oldest()
            if now - part.submission.since <= self._max_age_s:
                break
            taken_tokens += self._take_from(part, room - taken_tokens, batch)
            if part.waits:
                break
        return taken_tokens

    def _take_from(self, part: LanePart, room: int, batch: list[Row]) -> int:
        """Move a part's shortest rows that fit the room into the batch; return their tokens.

        An empty batch takes one row in any case.
        """
        before = part.tokens
        taken = part.take(room, at_least_one=not batch)
        tokens = before - part.tokens
        batch += taken
        part.submission.waiting_rows -= len(taken)
        part.submission.waiting_tokens -= tokens
        self.rows -= len(taken)
        self.tokens -= tokens
        if not part.waits:
            self._leave(part)
        return tokens

    def _leave(self, part: LanePart) -> None:
        """Remove a part of which nothing waits from its lane, and the lane if it was the last."""
        part.rows = []
        part.submission.parts.remove(part)
        lane = self._lanes[part.lane]
        lane.remove(part)
        if not lane.parts:
            del self._lanes[part.lane]
