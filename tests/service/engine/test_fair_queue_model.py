"""The fair queue against a model of it: requests come, go and grow late in any order."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.engine.fair_queue import AGED_PART, FairQueue
from service.engine.queued import Item, QueuedRequest

MAX_AGE_S = 10.0
lengths = st.integers(1, 512)


class Waiting(NamedTuple):
    """An item as the model of the queue knows it; `rank` is its rank in the fair order.

    That is: when its request would be done under sharing, which part came first, which item is shorter.
    """

    rank: tuple[float, int, int]
    item: Item[str]
    since: float
    deadline: float


class LineOfRequests(RuleBasedStateMachine):
    """Requests come, go and grow late while batches of any budget are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[str, int] = FairQueue(max_age_s=MAX_AGE_S)
        self.now = 0.0
        self.requests: dict[int, QueuedRequest[str, int]] = {}
        self.waiting: dict[tuple[int, int], Waiting] = {}
        self.parts = 0
        self.batches = 0

    @rule(
        items=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc")), min_size=1, max_size=12),
        patience=st.one_of(st.none(), st.floats(0, 30)),
    )
    def push(self, items: list[tuple[int, str]], patience: float | None) -> None:
        owner = len(self.requests)
        deadline = None if patience is None else self.now + patience
        work = [Item(tokens, lane, f"{owner}.{n}") for n, (tokens, lane) in enumerate(items)]
        self.requests[owner] = self.queue.push(owner, work, now=self.now, deadline=deadline)
        finish = self.queue.sharing.time + sum(item.tokens for item in work)
        for lane in dict.fromkeys(item.lane for item in work):
            self.parts += 1
            mine = [n for n, item in enumerate(work) if item.lane == lane]
            for nth, n in enumerate(sorted(mine, key=lambda n: work[n].tokens)):
                rank = (finish, self.parts, nth)
                patient = inf if deadline is None else deadline
                self.waiting[owner, n] = Waiting(rank, work[n], self.now, patient)

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
        entries, dropped = self.queue.take(budget, self.now)

        for owner in dropped:
            late = [key for key in self.waiting if key[0] == owner]
            assert late, "a request was dropped twice"
            assert self.waiting[late[0]].deadline <= self.now, "a request was dropped before its deadline"
            for key in late:
                del self.waiting[key]

        before = {key: w for key, w in self.waiting.items() if w.deadline > self.now}
        assert bool(entries) == bool(before), "the device idles while work is queued"
        if not entries:
            return
        taken = {}
        for owner, position, item in entries:
            waiting = self.waiting.pop((owner, position))  # KeyError: taken twice, or after it was dropped
            assert waiting.item is item
            taken[owner, position] = waiting

        aged = [w for w in before.values() if self.now - w.since > MAX_AGE_S]
        first = min(before.values())
        if aged and self.batches % AGED_PART == 0:
            first = min(aged, key=lambda w: w.rank[1])
        self.batches += 1
        lane = str(first.item.lane)
        tokens = sum(w.item.tokens for w in taken.values())
        assert tokens <= budget or len(taken) == 1, "a batch is over its budget"
        assert all(w.item.lane == lane for w in taken.values()), "two networks in one batch"

        mine = {key: w for key, w in before.items() if w.item.lane == lane}
        aged = sorted((w for w in aged if w.item.lane == lane), key=lambda w: (w.rank[1], w.rank[2]))
        left = [w for key, w in mine.items() if key not in taken]
        # By age: a quarter of the batch at most, or one item; the oldest first, and it in any case.
        out_of_turn = [w for w in taken.values() if any(other.rank < w.rank for other in left)]
        by_age = sum(w.item.tokens for w in out_of_turn)
        assert by_age <= budget // AGED_PART or len(out_of_turn) == 1, "more than its part went by age"
        assert set(out_of_turn) <= set(aged), "somebody was overtaken in the fair order"
        assert not aged or aged[0] in taken.values(), "the oldest of those past the age was passed over"
        if len(taken) > len(out_of_turn):
            following = min(left, default=None)
            assert following is None or tokens + following.item.tokens > budget, "the batch had room"

    @invariant()
    def accounts_balance(self) -> None:
        assert self.queue.items == len(self.waiting)
        assert self.queue.tokens == sum(w.item.tokens for w in self.waiting.values())
        oldest = min((w.since for w in self.waiting.values()), default=self.now)
        assert self.queue.oldest_age_s(self.now) == self.now - oldest
        if not self.waiting:
            assert not self.queue._lanes, "an empty queue still holds something"


TestLineOfRequests = LineOfRequests.TestCase
TestLineOfRequests.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
