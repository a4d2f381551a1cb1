"""The fair queue: which rows go into the next batch.

Requests are served one after the other, in the order in which they would be done if they shared the device
equally: the Fair Sojourn Protocol (Friedman and Henderson, "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). So a short request overtakes a long one that came before it, equal requests are served first
come, first served, and nobody is done later than under sharing, whoever comes after.

A request is answered as a whole, so the order within it does not matter: its rows wait shortest first, and a
batch takes them in that order. Neighbours are then alike in length at no cost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby
from math import inf
from operator import attrgetter

from headroom.service.engine.request import Prefix, Row, Submission, added_tokens

AGED_PART = 16
"""Once something is past its age, a sixteenth of each batch, and every 16th choice of a lane, go by age.

At 80 % of load short requests are then as fast as without it; with a quarter their median was six times
as long.
"""

_RANK = attrgetter("rank")


class Sharing:
    """Imagined sharing of the device, and its virtual time. Nothing is served in this way.

    `time` grows by one while each of the `active` requests, those that are not done under sharing, gets one
    token. A request that the device has finished earlier stays active until then, so that as much work is
    left under sharing as is really left.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self._finishes: list[float] = []  # of the active requests, in order

    @property
    def active(self) -> int:
        """Return how many requests are not done."""
        return len(self._finishes)

    def enter(self, tokens: int) -> float:
        """Add a request of at least one token, and return the time when it will be done."""
        finish = self.time + tokens
        insort(self._finishes, finish)
        return finish

    def shorten(self, finish: float, tokens: int) -> None:
        """Take away the tokens of a withdrawn request that were never served. finish: from `enter`."""
        if finish > self.time:
            del self._finishes[bisect_left(self._finishes, finish)]
            if finish - tokens > self.time:
                insort(self._finishes, finish - tokens)

    def advance(self, tokens: float) -> None:
        """Share out the work that the device has done. Infinitely much ends every request."""
        done = 0
        for active, finish in zip(range(len(self._finishes), 0, -1), self._finishes, strict=True):
            needed = (finish - self.time) * active
            if needed > tokens:
                self.time += tokens / active
                break
            tokens -= needed
            self.time = finish
            done += 1
        del self._finishes[:done]


@dataclass(slots=True, eq=False)
class LanePart:
    """The rows of one request in one lane, shortest first; those with equal prefixes follow each other.

    rank: its rank in the fair order: when its request would be done if all requests shared the device
        equally; of equal ones, the first to arrive.
    totals: the tokens that the rows before each index add to one batch of all, from 0 to all of them.
    next: index of the first row that still waits. tokens: of the rows that still wait.
    """

    submission: Submission
    lane: WaitingLane
    rank: tuple[float, int]
    rows: Sequence[Row]
    totals: Sequence[int]
    tokens: int
    next: int = 0


@dataclass(slots=True, eq=False)
class WaitingLane:
    """The parts that wait in one lane, in the fair order."""

    name: Hashable
    parts: list[LanePart] = field(default_factory=list)


class FairQueue:
    """Rows of many requests in several lanes. rows, tokens: how many wait.

    max_age_s: requests that have waited longer get a sixteenth of each batch of their lane, oldest first, and
        every 16th batch comes from the oldest one's lane. So a request that shorter ones overtake again and
        again still gets a sixteenth of the device. In a batch that is not filled up, the oldest request gets
        its share only if earlier batches gave it less.
    """

    def __init__(self, *, max_age_s: float) -> None:
        self.tokens = 0
        self.rows = 0
        self.sharing = Sharing()
        self._max_age_s = max_age_s
        self._arrivals = 0
        self._batches = 0
        # By how many tokens the oldest request is behind its part; negative if it is ahead.
        self._owed_by_age = 0.0
        self._lanes: dict[Hashable, WaitingLane] = {}
        self._parts: dict[LanePart, None] = {}  # all that wait, the oldest first
        self._parts_of: dict[Submission, list[LanePart]] = {}

    def push(self, submission: Submission, rows: Sequence[Row]) -> None:
        """Add a new request of at least one row. Its `since` is not before that of an earlier one."""
        submission.finish = self.sharing.enter(submission.tokens)
        for row in rows:
            row.submission = submission
        by_lane: dict[Hashable, list[Row]] = {}
        for name, neighbours in groupby(rows, key=attrgetter("lane")):  # so that a lane is hashed only once
            by_lane.setdefault(name, []).extend(neighbours)
        for name, rows_of_lane in by_lane.items():
            self._push_part(submission, name, rows_of_lane)
        self.rows += len(rows)
        self.tokens += submission.tokens

    def _push_part(self, submission: Submission, name: Hashable, rows: list[Row]) -> None:
        """Add the rows of a request that are for the lane of this name."""
        self._arrivals += 1
        rows.sort(key=attrgetter("tokens"))
        in_order = rows
        if [row.prefix for row in rows].count(None) < len(rows):
            by_prefix: dict[Prefix | None, list[Row]] = {}
            for row in rows:
                by_prefix.setdefault(row.prefix, []).append(row)
            in_order = list(chain.from_iterable(by_prefix.values()))
        totals = list(accumulate(added_tokens(in_order), initial=0))
        lane = self._lanes.setdefault(name, WaitingLane(name))
        rank = (submission.finish, self._arrivals)
        part = LanePart(submission, lane, rank, in_order, totals, totals[-1])
        insort(lane.parts, part, key=_RANK)
        self._parts_of.setdefault(submission, []).append(part)
        self._parts[part] = None

    def remove(self, submission: Submission) -> None:
        """Remove the part of a request that still waits."""
        parts = self._parts_of.get(submission)
        if parts is None:
            return
        self.sharing.shorten(submission.finish, submission.waiting_tokens)
        self.rows -= submission.waiting_rows
        self.tokens -= submission.waiting_tokens
        submission.waiting_rows = 0
        submission.waiting_tokens = 0
        for part in list(parts):
            self._leave(part)
        if not self.rows:
            self.sharing.advance(inf)

    def ahead_of(self, tokens: int) -> float:
        """Return about how many waiting tokens would be served before a new request of `tokens`.

        Under sharing, no other request gets more than `tokens` before the new one is done. More are served if
        batches of other lanes are filled up with what comes after it, or if others are past their age.
        """
        return min(self.tokens, self.sharing.active * tokens)

    def oldest_age_s(self, now: float) -> float:
        """Return how long the oldest request with work not begun has waited; 0 if nothing waits."""
        oldest = next(iter(self._parts), None)
        return 0.0 if oldest is None else now - oldest.submission.since

    def take(self, budget: int, now: float, *, fill: bool = True) -> list[Row]:
        """Take the next batch, all of one lane; empty if nothing waits.

        The batch holds at most `budget` tokens, or one row that is longer: as much as fits of the lane's
        first request in the fair order, then of the next.

        fill: whether room that is left is filled with a part of a request that the batch does not finish. If
            not, the batch is smaller, and the requests that it finishes are answered sooner.
        """
        if not self.rows:
            return []
        first = next(iter(self._parts))
        is_aged = now - first.submission.since > self._max_age_s
        if is_aged and self._batches % AGED_PART == 0:
            lane = first.lane
        else:
            lane = min(self._lanes.values(), key=lambda waiting: waiting.parts[0].rank)
        batch: list[Row] = []
        tokens_by_age = 0
        if is_aged and (fill or self._owed_by_age > 0):
            tokens_by_age = self._take_aged(lane, budget // AGED_PART, now, batch)
        oldest = self._oldest(lane) if is_aged else None
        room = budget - tokens_by_age
        has_finished_part = False
        while lane.parts:
            part = lane.parts[0]
            if has_finished_part and not fill and part.tokens > room:
                break
            tokens = self._take_from(part, room, batch)
            room -= tokens
            if part is oldest:
                tokens_by_age += tokens
            if part.tokens:
                break
            has_finished_part = True
        batch_tokens = budget - room
        owed = 0.0
        if is_aged:
            owed = self._owed_by_age + batch_tokens / AGED_PART - tokens_by_age
        self._owed_by_age = max(-budget, min(budget, owed))
        self._batches += 1
        # Once nothing waits, forget what the imagined sharing owes.
        self.sharing.advance(batch_tokens if self.rows else inf)
        return batch

    def _take_aged(self, lane: WaitingLane, room: int, now: float, batch: list[Row]) -> int:
        """Take what is past its age and fits the room, oldest first, at least one row; return its tokens."""
        taken_tokens = 0
        while (part := self._oldest(lane)) is not None and (not batch or taken_tokens < room):
            if now - part.submission.since <= self._max_age_s:
                break
            taken_tokens += self._take_from(part, room - taken_tokens, batch)
            if part.tokens:
                break
        return taken_tokens

    def _oldest(self, lane: WaitingLane) -> LanePart | None:
        """Return the part of a lane that came first; None if nothing waits in it."""
        return next((part for part in self._parts if part.lane is lane), None)

    def _take_from(self, part: LanePart, room: int, batch: list[Row]) -> int:
        """Move a part's shortest rows that fit the room into the batch; return their tokens.

        An empty batch takes one row in any case.
        """
        first = part.next
        taken_before = part.totals[first]
        first_adds = part.totals[first + 1] - taken_before
        # If an earlier batch computed the first row's prefix, this one computes it again.
        repeated_tokens = part.rows[first].tokens - first_adds
        end = bisect_right(part.totals, taken_before + room - repeated_tokens) - 1
        end = max(end, first if batch else first + 1)
        if end == first:
            return 0
        batch += part.rows[first:end]
        tokens = part.totals[end] - taken_before
        part.next = end
        part.tokens -= tokens
        part.submission.waiting_rows -= end - first
        part.submission.waiting_tokens -= tokens
        self.rows -= end - first
        self.tokens -= tokens
        if not part.tokens:
            self._leave(part)
        return tokens + repeated_tokens

    def _leave(self, part: LanePart) -> None:
        """Remove a part of which nothing waits from its lane, and the lane if it was the last."""
        part.rows = ()
        parts_of_request = self._parts_of[part.submission]
        parts_of_request.remove(part)
        if not parts_of_request:
            del self._parts_of[part.submission]
        del self._parts[part]
        parts = part.lane.parts
        del parts[bisect_left(parts, part.rank, key=_RANK)]
        if not parts:
            del self._lanes[part.lane.name]
