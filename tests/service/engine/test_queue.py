"""The fair queue: what a request would lose if a batch were chosen wrongly."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.queue import FairQueue
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


def owners(queue: FairQueue, budget: int = BUDGET, now: float = 0.0) -> list[Any]:
    return owners_of(queue.take(budget, now))


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
    push(queue, 1, [Named(small, "lane")], now=0.0)
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
    push(queue, 99, [Named(small, "lane")], now=0.0)
    assert 99 in owners(queue) + owners(queue)


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
    """Every batch could be filled with newcomers alone; a quarter of it goes to what is past its age."""
    queue = queue_of([25] * 100, max_age_s=1.0)
    got = newcomers = 0
    for turn in range(12 if fill else 14):
        while queue.tokens - 25 * (100 - got) < 2 * BUDGET:
            newcomers += 1
            push(queue, newcomers, [Named(25, "lane")], now=float(turn))
        entries = queue.take(BUDGET, now=float(turn), fill=fill)
        got += owners_of(entries).count(0)
    assert got == 100


def test_who_is_done_with_a_batch_need_not_wait_for_part_of_an_old_request_that_got_its_part() -> None:
    queue = queue_of([25] * 1000, max_age_s=1.0)
    for turn in range(2, 6):
        assert owners_of(queue.take(BUDGET, now=float(turn), fill=False))[0] == 0
        push(queue, turn, [Named(25, "lane")], now=float(turn))
        assert owners_of(queue.take(BUDGET, now=float(turn), fill=False)) == [turn]


def test_who_is_done_with_a_batch_need_not_wait_for_part_of_a_long_request() -> None:
    queue = queue_of([25] * 1000, [25] * 2, [25])
    assert owners_of(queue.take(BUDGET, now=0.0, fill=False)) == [2, 1, 1]
    assert owners_of(queue.take(BUDGET, now=0.0, fill=False)) == [0] * 40


def test_a_request_does_not_pay_for_others_that_gave_up() -> None:
    queue = queue_of([25] * 400)
    others = [push(queue, owner, [Named(25, "lane")] * 200, now=0.0) for owner in range(1, 5)]
    assert set(owners(queue)) == {1}
    for queued in others:
        queue.remove(queued)
    push(queue, 99, [Named(25, "lane")] * 400, now=0.0)
    assert [set(owners(queue)) for _ in range(11)] == [{0}] * 10 + [{99}]


def test_what_is_before_a_request_is_known_when_it_comes() -> None:
    """The admission limit: a short request waits for little even behind many tokens, a long one for all."""
    queue = queue_of([25] * 400, [25] * 400, [25])
    assert queue.ahead_of(10) == 30
    assert queue.ahead_of(1000) == 3000
    assert queue.ahead_of(100_000) == queue.tokens


def test_short_requests_of_one_model_do_not_keep_out_a_long_one_of_another() -> None:
    queue: FairQueue = FairQueue(max_age_s=1.0)
    push(queue, "long", [Named(50, "pruned")] * 100, now=0.0)
    taken = []
    for turn in range(12):
        for _ in range(20):
            push(queue, "short", [Named(50, "full")], now=2.0 + turn)
        taken.append(set(owners_of(queue.take(BUDGET, now=2.0 + turn))))
    assert taken.count({"long"}) == 3


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """Behind a stuck device 10,000 requests time out; the queue must not remember them."""
    queue = queue_of([25])
    for owner in range(10_000):
        queue.remove(push(queue, owner, [Named(25, "lane")] * 3, now=0.0))
    assert (queue.rows, queue.tokens) == (1, 25)
    (lane,) = queue._lanes.values()
    assert len(lane.parts) == queue.sharing.active == 1
