"""The fair queue against a model of it: requests come and go in any order."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.engine.queue import AGED_PART, FairQueue
from service.engine.request import Row
from tests.service.engine.stage import Named, Owned, push

MAX_AGE_S = 10.0
lengths = st.integers(1, 512)


class Waiting(NamedTuple):
    """A row as the model of the queue knows it; `rank` is its rank in the fair order.

    That is: when its request would be done under sharing, which part came first, which row is shorter.
    """

    rank: tuple[float, int, int]
    row: Row
    since: float


class LineOfRequests(RuleBasedStateMachine):
    """Requests come and go while batches of any budget are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue = FairQueue(max_age_s=MAX_AGE_S)
        self.now = 0.0
        self.requests: dict[int, Owned] = {}
        self.waiting: dict[tuple[int, int], Waiting] = {}
        self.parts = 0
        self.batches = 0

    @rule(
        items=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc")), min_size=1, max_size=12),
    )
    def push(self, items: list[tuple[int, str]]) -> None:
        owner = len(self.requests)
        work = [Named(tokens, lane, f"{owner}.{n}") for n, (tokens, lane) in enumerate(items)]
        self.requests[owner] = push(self.queue, owner, work, now=self.now)
        finish = self.queue.sharing.time + sum(row.tokens for row in work)
        for lane in dict.fromkeys(row.lane for row in work):
            self.parts += 1
            mine = [n for n, row in enumerate(work) if row.lane == lane]
            for nth, n in enumerate(sorted(mine, key=lambda n: work[n].tokens)):
                rank = (finish, self.parts, nth)
                self.waiting[owner, n] = Waiting(rank, work[n], self.now)

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.requests)))
        self.queue.remove(self.requests[owner])
        self.waiting = {key: waiting for key, waiting in self.waiting.items() if key[0] != owner}

    @rule(budget=st.integers(1, 200))
    def take(self, budget: int) -> None:
        entries = self.queue.take(budget, self.now)
        before = dict(self.waiting)
        assert bool(entries) == bool(before), "the device idles while work is queued"
        if not entries:
            return
        taken = {}
        for row in entries:
            key = next(key for key, waiting in before.items() if waiting.row is row)
            taken[key] = self.waiting.pop(key)  # KeyError: taken twice, or after it was removed

        aged = [w for w in before.values() if self.now - w.since > MAX_AGE_S]
        first = min(before.values())
        if aged and self.batches % AGED_PART == 0:
            first = min(aged, key=lambda w: w.rank[1])
        self.batches += 1
        lane = str(first.row.lane)
        tokens = sum(w.row.tokens for w in taken.values())
        assert tokens <= budget or len(taken) == 1, "a batch is over its budget"
        assert all(w.row.lane == lane for w in taken.values()), "two networks in one batch"

        mine = {key: w for key, w in before.items() if w.row.lane == lane}
        aged = sorted((w for w in aged if w.row.lane == lane), key=lambda w: (w.rank[1], w.rank[2]))
        left = [w for key, w in mine.items() if key not in taken]
        # By age: a quarter of the batch at most, or one item; the oldest first, and it in any case.
        out_of_turn = [w for w in taken.values() if any(other.rank < w.rank for other in left)]
        by_age = sum(w.row.tokens for w in out_of_turn)
        assert by_age <= budget // AGED_PART or len(out_of_turn) == 1, "more than its part went by age"
        assert set(out_of_turn) <= set(aged), "somebody was overtaken in the fair order"
        assert not aged or aged[0] in taken.values(), "the oldest of those past the age was passed over"
        if len(taken) > len(out_of_turn):
            following = min(left, default=None)
            assert following is None or tokens + following.row.tokens > budget, "the batch had room"

    @invariant()
    def accounts_balance(self) -> None:
        assert self.queue.rows == len(self.waiting)
        assert self.queue.tokens == sum(w.row.tokens for w in self.waiting.values())
        oldest = min((w.since for w in self.waiting.values()), default=self.now)
        assert self.queue.oldest_age_s(self.now) == self.now - oldest
        if not self.waiting:
            assert not self.queue._lanes, "an empty queue still holds something"


TestLineOfRequests = LineOfRequests.TestCase
TestLineOfRequests.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
