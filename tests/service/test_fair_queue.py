"""The waiting line: what a request would lose if a batch were chosen wrongly."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.fair_queue import FairQueue, Flow, Item

MAX_AGE_S = 10.0
BUDGET = 1000
lengths = st.integers(1, 512)


class Waiting(NamedTuple):
    """An item as the model of the queue knows it; `place` is its place in the fair order."""

    place: tuple[float, int]
    item: Item[str]
    since: float
    deadline: float


class LineOfRequests(RuleBasedStateMachine):
    """Requests come, go and grow late while batches of any budget are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[str, int] = FairQueue(max_age_s=MAX_AGE_S)
        self.now = 0.0
        self.flows: dict[int, Flow[str, int]] = {}
        self.waiting: dict[tuple[int, int], Waiting] = {}
        self.overtaken: Counter[tuple[tuple[int, int], str]] = Counter()
        self.strands = 0

    @rule(
        items=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc")), min_size=1, max_size=12),
        patience=st.one_of(st.none(), st.floats(0, 30)),
    )
    def push(self, items: list[tuple[int, str]], patience: float | None) -> None:
        owner = len(self.flows)
        deadline = None if patience is None else self.now + patience
        work = [Item(tokens, lane, f"{owner}.{n}") for n, (tokens, lane) in enumerate(items)]
        start = self.queue.virtual_time
        self.flows[owner] = self.queue.push(owner, work, now=self.now, deadline=deadline)
        for lane in dict.fromkeys(item.lane for item in work):
            self.strands += 1
            mine = [n for n, item in enumerate(work) if item.lane == lane]
            for n in sorted(mine, key=lambda n: work[n].tokens):
                place = (start, self.strands)
                self.waiting[owner, n] = Waiting(
                    place, work[n], self.now, inf if deadline is None else deadline
                )
                start += work[n].tokens

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.flows)))
        gone = [key for key in self.waiting if key[0] == owner]
        assert self.queue.remove(self.flows[owner]) == len(gone)
        for key in gone:
            del self.waiting[key]

    @rule(budget=st.integers(1, 200))
    def take(self, budget: int) -> None:
        virtual_time = self.queue.virtual_time
        entries, dropped = self.queue.take(budget, self.now)

        for owner, items in dropped:
            late = [key for key in self.waiting if key[0] == owner]
            assert items == len(late) > 0, "a request was dropped twice, or in part"
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

        first = min(before.values())
        lane = str(first.item.lane)
        tokens = sum(w.item.tokens for w in taken.values())
        assert tokens <= budget or len(taken) == 1, "a batch is over its budget"
        assert all(w.item.lane == lane for w in taken.values()), "two networks in one batch"
        assert first in taken.values(), "the first in the fair order was passed over"

        left = {key: w for key, w in before.items() if key not in taken}
        last = max(w.place for w in taken.values())
        for key, w in left.items():
            if self.now - w.since > MAX_AGE_S and w.place < last:
                assert w.item.lane != lane, "somebody past the age bound was overtaken"
                if w.place[0] <= virtual_time:
                    self.overtaken[key, lane] += 1
                    assert self.overtaken[key, lane] == 1, "another model's batches keep overtaking"
        if sum(w.item.tokens for w in before.values() if w.item.lane == lane) <= budget:
            assert not any(w.item.lane == lane for w in left.values()), (
                "what would have fitted was left behind"
            )

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


def queue_of(*requests: list[int], max_age_s: float = inf) -> FairQueue[None, int]:
    """Requests named 0, 1, … with items of the given lengths."""
    queue: FairQueue[None, int] = FairQueue(max_age_s=max_age_s)
    for owner, request in enumerate(requests):
        queue.push(owner, [Item(tokens, "lane", None) for tokens in request], now=0.0)
    return queue


def owners(queue: FairQueue[None, int], budget: int = BUDGET, now: float = 0.0) -> list[int]:
    return [entry.owner for entry in queue.take(budget, now)[0]]


@given(
    big=st.lists(st.integers(1, 480), min_size=20, max_size=200),
    small=st.integers(1, 480),
    batches=st.integers(0, 8),
)
@settings(deadline=None)
def test_one_title_gets_into_the_very_next_batch_beside_a_long_request(
    big: list[int], small: int, batches: int
) -> None:
    queue = queue_of(big)
    for _ in range(batches):
        queue.take(BUDGET, now=0.0)
    queue.push(1, [Item(small, "lane", None)], now=0.0)
    assert 1 in owners(queue)


@given(
    bigs=st.lists(st.lists(lengths, min_size=40, max_size=120), min_size=2, max_size=5),
    small=lengths,
    batches=st.integers(0, 8),
)
@settings(deadline=None)
def test_one_title_waits_for_at_most_two_batches_beside_many_long_requests(
    bigs: list[list[int]], small: int, batches: int
) -> None:
    queue = queue_of(*bigs)
    for _ in range(batches):
        queue.take(BUDGET, now=0.0)
    queue.push(99, [Item(small, "lane", None)], now=0.0)
    assert 99 in owners(queue) + owners(queue)


@given(small=st.lists(st.integers(50, 512), min_size=1, max_size=5))
@settings(deadline=None, max_examples=20)
def test_endless_small_requests_do_not_starve_a_long_one(small: list[int]) -> None:
    """Every batch could be filled with newcomers alone, yet the long request gets its share of the tokens."""
    queue = queue_of([25] * 100)
    got = newcomers = 0
    share = 0.0
    while got < 100:
        while queue.tokens - 25 * (100 - got) < 2 * BUDGET:
            newcomers += 1
            queue.push(newcomers, [Item(small[newcomers % len(small)], "lane", None)], now=0.0)
        requests = queue.items - (100 - got) + 1
        got += owners(queue).count(0)
        share += BUDGET / requests
        assert 25 * got >= share - 2 * BUDGET, "more than two batches behind its share"


def test_equal_requests_share_the_device_equally() -> None:
    queue = queue_of(*[[25] * 400] * 4)
    got = [0, 0, 0, 0]
    for _ in range(20):
        for owner in owners(queue):
            got[owner] += 1
        assert max(got) - min(got) <= BUDGET / 25


def test_capacity_that_nobody_wanted_is_not_held_against_the_one_who_used_it() -> None:
    """Beside a trickle of single titles a long request gets the rest; an equal that joins then gets half."""
    queue = queue_of([25] * 1000)
    for owner in range(1, 11):
        queue.push(owner, [Item(25, "lane", None)], now=0.0)
        owners(queue)
    queue.push(99, [Item(25, "lane", None)] * 400, now=0.0)
    batches = [owners(queue) for _ in range(4)]
    assert all(abs(batch.count(0) - batch.count(99)) <= 4 for batch in batches)


def test_a_request_does_not_pay_for_others_that_gave_up() -> None:
    queue = queue_of([25] * 400)
    others = [queue.push(owner, [Item(26, "lane", None)] * 400, now=0.0) for owner in range(1, 5)]
    assert owners(queue).count(0) > 40 / 5, "ahead of its share, for its titles are alike"
    for flow in others:
        queue.remove(flow)
    owners(queue)
    queue.push(99, [Item(25, "lane", None)] * 400, now=0.0)
    assert owners(queue).count(0) == 20


def test_neighbours_in_a_batch_are_alike_in_length() -> None:
    """Short and long titles arrive in turn; a batch holds one sort, so little time is lost on the mixture."""
    queue = queue_of(*[[30], [40]] * 20)
    batch, _ = queue.take(300, now=0.0)
    assert [entry.item.tokens for entry in batch] == [30] * 10


def test_a_long_title_is_not_overtaken_for_ever_by_short_ones() -> None:
    queue = queue_of([10], [90], *[[10]] * 100, max_age_s=1.0)
    young, _ = queue.take(100, now=1.0)
    assert 1 not in [entry.owner for entry in young]
    queue.push(1000, [Item(10, "lane", None)], now=1.0)
    old, _ = queue.take(100, now=1.5)
    assert old[0].owner == 1


def test_a_title_over_the_budget_goes_alone() -> None:
    queue = queue_of([10], [300], [10])
    assert [owners(queue, budget=100) for _ in range(3)] == [[0], [1], [2]]


def test_an_overdue_request_of_another_model_is_next_after_the_batch_before_it() -> None:
    queue: FairQueue[None, str] = FairQueue(max_age_s=1.0)
    queue.push("full", [Item(50, "full", None)] * 40, now=0.0)
    queue.push("pruned", [Item(50, "pruned", None)], now=0.0)
    taken = [{entry.owner for entry in queue.take(BUDGET, now=2.5)[0]} for _ in range(3)]
    assert taken == [{"full"}, {"pruned"}, {"full"}]


def test_two_overdue_models_still_run_in_full_batches() -> None:
    """Under overload everything is overdue; batches of one item would turn that into a standstill."""
    queue: FairQueue[None, int] = FairQueue(max_age_s=1.0)
    for owner in range(400):
        queue.push(owner, [Item(25, ("full", "pruned")[owner % 2], None)], now=0.0)
    batches = [owners(queue, now=5.0) for _ in range(10)]
    assert [len(batch) for batch in batches] == [BUDGET // 25] * 10
    assert [batch[0] for batch in batches] == [0, 1, 80, 81, 160, 161, 240, 241, 320, 321]


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """Behind a stuck device 10,000 requests time out; the line must not remember them."""
    queue = queue_of([25])
    for owner in range(10_000):
        queue.remove(queue.push(owner, [Item(25, "lane", None)] * 3, now=0.0))
    assert (queue.items, queue.tokens) == (1, 25)
    (lane,) = queue._lanes.values()
    assert len(lane.strands) == 1
    assert len(lane.line) <= 20
