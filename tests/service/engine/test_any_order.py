"""Requests, hang-ups, deadlines and failures in any order: nothing is lost, mixed up or left hanging."""

import asyncio
from collections.abc import Awaitable
from math import inf
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headroom.service.engine.admission import TOO_LATE
from headroom.service.errors import DeadlineExceeded, DeviceFailed, OutOfMemory, QueueFull
from tests.service.engine.stage import Named, Stage, Ticket, names, result_of, settle

T = TypeVar("T")

SLOTS = 2
BUDGET = 60
MAX_AHEAD = 400
LARGEST = 15 * 90


class TrafficOnAShakyDevice(RuleBasedStateMachine):
    """Requests, hang-ups, deadlines and every kind of failure in any order; names are (ticket, item)."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stage = Stage(
            max_batch_tokens=BUDGET,
            max_queue_tokens=MAX_AHEAD,
            max_request_tokens=LARGEST,
            max_age_s=3.0,
            slots=SLOTS,
        )
        self.device, self.clock, self.scheduler = self.stage.device, self.stage.clock, self.stage.scheduler
        self.server = self.loop.create_task(self.scheduler.run())
        self.tickets: list[Ticket] = []
        self.requests: list[list[Named]] = []
        self.waiters: list[asyncio.Task[list[Any]]] = []
        self.deadlines: list[float] = []
        self.cancelled: set[int] = set()
        self.poison: set[tuple[int, int]] = set()
        self.excused: dict[tuple[int, int], type[Exception]] = {}  # items that failed, as the device said
        self.seen = 0
        self.begun: set[tuple[int, int]] = set()
        self.retried: set[tuple[int, int]] = set()
        self.do(settle())

    def do(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(
        work=st.lists(
            st.tuples(st.integers(1, 90), st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=15
        ),
        patience=st.one_of(st.none(), st.floats(0, 6)),
    )
    def submit(self, work: list[tuple[int, str, int]], patience: float | None) -> None:
        name = len(self.tickets)
        request = [Named(tokens, lane, (name, n)) for n, (tokens, lane, _) in enumerate(work)]
        deadline = inf if patience is None else self.clock() + patience
        total, queued = sum(item.tokens for item in request), self.scheduler.queued_tokens
        ahead = self.scheduler._queue.ahead_of(total)
        in_flight = (
            sum(batch.tokens for batch, _ in self.device.running) + BUDGET * SLOTS
        )  # and its other parts

        async def enter() -> None:
            if request and queued and (ahead > MAX_AHEAD or queued + total > 2 * MAX_AHEAD + LARGEST):
                with pytest.raises(QueueFull):
                    self.stage.submit(request, deadline=deadline)
                return
            refused: QueueFull | None = None
            try:
                ticket = self.stage.submit(request, deadline=deadline)
            except QueueFull as error:
                refused = error
            if refused is not None:
                assert refused.message == TOO_LATE, "refused for no reason"
                assert queued + in_flight + total > (patience or 0) * (self.scheduler._rate.per_second or inf)
                return
            self.tickets.append(ticket)
            self.requests.append(request)
            self.deadlines.append(deadline)
            self.poison |= {(name, n) for n, (_, _, luck) in enumerate(work) if luck == 0}
            self.waiters.append(self.loop.create_task(ticket.result()))

        self.do(enter())
        self.clock.advance(0)
        self.do(settle())

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), by_waiter=st.booleans())
    def hang_up(self, data: st.DataObject, by_waiter: bool) -> None:
        name = data.draw(st.integers(0, len(self.tickets) - 1))
        if not self.waiters[name].done():
            self.cancelled.add(name)
            if by_waiter:
                self.waiters[name].cancel()
            else:
                self.tickets[name].cancel()
        self.do(settle())

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.do(settle())

    @precondition(lambda self: self.device.running)
    @rule(data=st.data(), trouble=st.sampled_from([None, None, None, OutOfMemory, DeviceFailed]))
    def finish(self, data: st.DataObject, trouble: type[Exception] | None) -> None:
        index = data.draw(st.integers(0, len(self.device.running) - 1))
        self.end(index, trouble)

    def end(self, index: int, trouble: type[Exception] | None = None) -> None:
        batch = self.device.running[index][0]
        payloads = names(batch)
        if trouble is None and self.poison & set(payloads):
            trouble = ValueError
        if trouble is None:
            self.device.finish(index)
        else:
            self.device.fail(trouble(), index)
            if trouble is DeviceFailed or len(payloads) == 1:
                self.excused |= dict.fromkeys(payloads, trouble)
            else:
                self.retried |= set(payloads)
        self.do(settle())

    def every_batch_was_right(self) -> None:
        for batch, budget in zip(
            self.device.batches[self.seen :], self.device.budgets[self.seen :], strict=True
        ):
            assert batch.tokens == sum(row.tokens for row in batch.rows)
            assert batch.tokens <= budget or len(batch.rows) == 1, "a batch is over the budget"
            assert budget <= BUDGET
            assert {row.lane for row in batch.rows} == {batch.lane}, "two networks in one batch"
            for item in batch.rows:
                assert isinstance(item, Named)
                name, _ = item.name
                assert self.requests[name][item.name[1]] is item
                assert name not in self.cancelled, "work of a client that hung up"
                if item.name in self.retried:
                    self.retried.discard(item.name)
                else:
                    assert item.name not in self.begun, "an item ran twice"
                    assert self.deadlines[name] > self.clock(), "late work was begun"
                self.begun.add(item.name)
        self.seen = len(self.device.batches)

    @invariant()
    def accounts_balance(self) -> None:
        self.every_batch_was_right()
        waiting = [
            item
            for name, request in enumerate(self.requests)
            if not self.waiters[name].done()
            for item in request
            if item.name not in self.begun
        ]
        assert self.scheduler.queued_tokens == sum(item.tokens for item in waiting)
        assert not waiting or len(self.device.running) == SLOTS, "a slot idles while work is queued"
        assert len(self.device.running) <= SLOTS

    def teardown(self) -> None:
        draining = self.loop.create_task(self.scheduler.drain())
        self.do(settle())
        while self.device.running:
            self.end(0)
            self.every_batch_was_right()
        assert draining.done(), "drain() hangs"
        self.do(self.server)
        for name, waiter in enumerate(self.waiters):
            assert waiter.done(), "a request was lost"
            if name in self.cancelled:
                assert waiter.cancelled()
            elif waiter.exception():
                assert isinstance(waiter.exception(), DeadlineExceeded)
                assert self.deadlines[name] <= self.clock()
            else:
                for item, result in zip(self.requests[name], waiter.result(), strict=True):
                    if item.name in self.excused:
                        assert type(result) is self.excused[item.name]
                    else:
                        assert result == result_of(item.name)
        assert not self.scheduler._requests
        assert self.scheduler.in_flight_rows == self.scheduler.queued_tokens == 0
        self.loop.close()


TestTrafficOnAShakyDevice = TrafficOnAShakyDevice.TestCase
TestTrafficOnAShakyDevice.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
