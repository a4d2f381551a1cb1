"""The fair queue: what a request would lose if a batch were chosen wrongly."""

import random
from math import inf
from statistics import median
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headroom.models.batch import Beginning
from headroom.service.engine.queue import AGED_PART, FairQueue
from headroom.service.engine.request import Row, added_tokens
from tests.service.engine.stage import Named, Owned, owners_of, push

MAX_AGE_S = 10.0
BUDGET = 1000
lengths = st.integers(1, 512)


def queue_of(*requests: list[int], max_age_s: float = inf) -> FairQueue:
    """Requests named 0, 1, … with items of the given lengths."""
    queue: FairQueue = FairQueue(max_age_s=max_age_s)
    for owner, request in enumerate(requests):
        push(queue, owner, [Named(tokens, "lane") for tokens in request], now=0.0)
    return queue


@given(
    owns=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=9), min_size=1, max_size=4),
    budget=st.integers(60, 200),
)
def test_what_rows_share_counts_once_in_each_batch(owns: list[list[int]], budget: int) -> None:
    """Each list is one beginning of 40 tokens and what its rows have of their own."""
    rows = []
    for number, own in enumerate(owns):
        for tokens in own:
            rows.append(Named(40 + tokens, "lane"))
            rows[-1].prefix = Beginning(number, 40)
    random.Random(0).shuffle(rows)
    queue: FairQueue = FairQueue(max_age_s=inf)
    submission = push(queue, 0, rows, now=0.0)
    assert submission.tokens == queue.tokens == 40 * len(owns) + sum(map(sum, owns))
    batches = []
    while batch := queue.take(budget, 0.0):
        batches.append(batch)
        assert sum(added_tokens(batch)) <= budget
    assert (queue.tokens, queue.rows, sum(map(len, batches))) == (0, 0, len(rows))
    parts = [{row.prefix for row in batch} for batch in batches]
    assert sum(map(len, parts)) < len(owns) + len(batches)  # only one beginning is cut by a batch's end


@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.lists(lengths, min_size=1, max_size=60), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None)
def test_nobody_is_done_later_than_if_all_shared_the_device(
    arrivals: list[tuple[int, list[int], bool]],
) -> None:
    """Whatever comes, and whoever gives up: it is done within one batch of when sharing had done it."""
    queue: FairQueue = FairQueue(max_age_s=inf)
    waiting: dict[int, Owned] = {}
    shared: dict[int, float] = {}
    due: dict[int, int] = {}  # how much work had been done when sharing was done with it
    work = 0

    def batch() -> None:
        nonlocal work
        entries = queue.take(BUDGET, now=0.0)
        tokens = float(sum(entry.tokens for entry in entries))
        work += int(tokens)
        while tokens > 1e-6 and shared:
            part = min(tokens / len(shared), min(shared.values()))
            tokens -= part * len(shared)
            for owner in list(shared):
                shared[owner] -= part
                if shared[owner] <= 1e-6:
                    del shared[owner]
                    due[owner] = work
        for owner in [owner for owner, queued in waiting.items() if not queued.waiting_rows]:
            del waiting[owner]
        for owner in waiting:
            assert owner not in due or work <= due[owner] + BUDGET, "later than under sharing"

    for owner, (batches, request, gives_up) in enumerate(arrivals):
        waiting[owner] = push(queue, owner, [Named(tokens, "lane") for tokens in request], now=0.0)
        shared[owner] = sum(request)
        for _ in range(batches):
            batch()
        if gives_up and owner in waiting:
            queued = waiting.pop(owner)
            got = sum(request) - queued.waiting_tokens
            queue.remove(queued)
            if owner in shared:
                shared[owner] -= sum(request) - got
                if shared[owner] <= 1e-6:
                    del shared[owner]
    while waiting:
        batch()


@pytest.mark.parametrize("fill", [True, False])
def test_a_long_request_ends_however_many_short_ones_keep_coming(fill: bool) -> None:
    """Every batch could be filled with newcomers alone; a sixteenth of it goes to what is past its age."""
    queue = queue_of([25] * 100, max_age_s=1.0)
    got = newcomers = 0
    for turn in range(60):
        while queue.tokens - 25 * (100 - got) < 2 * BUDGET:
            newcomers += 1
            push(queue, newcomers, [Named(25, "lane")], now=float(turn))
        entries = queue.take(BUDGET, now=float(turn), fill=fill)
        got += owners_of(entries).count(0)
    assert got == 100


def test_a_long_request_past_its_age_costs_short_ones_little_at_80_percent_of_the_load() -> None:
    """A client asks 400 titles again and again. With a quarter single titles waited twice as long."""
    assert median_wait_of_singles(max_age_s=0.5) < 1.2 * median_wait_of_singles(max_age_s=inf)


def median_wait_of_singles(*, max_age_s: float, tokens_per_s: int = 20_000) -> float:
    """Return how many seconds single titles wait and are computed, by a clock that the batches move."""
    rng = random.Random(0)
    queue = queue_of([25] * 400, max_age_s=max_age_s)
    now, arrival, waits, left = 0.0, 0.0, [], 400
    since: dict[int, float] = {}
    while now < 30:
        while arrival <= now:
            push(queue, len(since) + 1, [Named(25, "lane")], now=arrival)
            since[len(since) + 1] = arrival
            arrival += rng.expovariate(0.8 * tokens_per_s / 25)
        entries = queue.take(1600, now)
        now += sum(entry.tokens for entry in entries) / tokens_per_s
        served = owners_of(entries)
        left -= served.count(0)
        waits += [now - since[owner] for owner in served if owner]
        if not left:
            push(queue, 0, [Named(25, "lane") for _ in range(400)], now=now)
            left = 400
    return median(waits)


def test_who_is_done_with_a_batch_need_not_wait_for_part_of_an_old_request_that_got_its_part() -> None:
    queue = queue_of([25] * 1000, max_age_s=1.0)
    for turn in range(2, 6):
        assert owners_of(queue.take(BUDGET, now=float(turn), fill=False))[0] == 0
        push(queue, turn, [Named(25, "lane")], now=float(turn))
        assert owners_of(queue.take(BUDGET, now=float(turn), fill=False)) == [turn]


def test_what_is_before_a_request_is_known_when_it_comes() -> None:
    """The admission limit: a short request waits for little even behind many tokens, a long one for all."""
    queue = queue_of([25] * 400, [25] * 400, [25])
    assert queue.ahead_of(10) == 30
    assert queue.ahead_of(1000) == 3000
    assert queue.ahead_of(100_000) == queue.tokens


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """Behind a stuck device 10,000 requests time out; the queue must not remember them."""
    queue = queue_of([25])
    for owner in range(10_000):
        queue.remove(push(queue, owner, [Named(25, "lane")] * 3, now=0.0))
    assert (queue.rows, queue.tokens) == (1, 25)
    (lane,) = queue._lanes.values()
    assert len(lane.parts) == queue.sharing.active == 1


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

    @rule(items=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc")), min_size=1, max_size=12))
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
        # By age: a sixteenth of the batch at most, or one item; the oldest first, and it in any case.
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
