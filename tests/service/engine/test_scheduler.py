"""The scheduler: what a request would lose if its work were lost, late, mixed up or left hanging."""

import asyncio
import sys

import pytest

from headroom.service.errors import Draining
from tests.service.engine.stage import Stage, result_of, rows, settle, stage


async def test_slots_side_by_side_share_what_waits() -> None:
    async with stage(slots=2, split_tokens=20) as s:
        ticket = s.submit(rows(*range(8)))  # 80 tokens of a budget of 100
        await settle()
        assert [batch.tokens for batch in s.device.batches] == [40, 40]
        assert not any(batch.alone for batch in s.device.batches)
        s.device.finish()
        s.device.finish()
        assert await ticket.result() == [result_of(n) for n in range(8)]


async def test_what_is_too_little_to_share_goes_alone_and_says_so() -> None:
    async with stage(slots=2, split_tokens=20) as s:
        s.submit(rows(*range(3)))
        await settle()
        assert [(batch.tokens, batch.alone) for batch in s.device.batches] == [(30, True)]
        s.submit(rows(*range(2)))  # the other slot is idle
        await settle()
        assert [(batch.tokens, batch.alone) for batch in s.device.batches][1:] == [(20, False)]


async def test_many_slots_go_together_where_sharing_would_leave_most_of_them_idle() -> None:
    async with stage(slots=8, split_tokens=20) as s:
        s.submit(rows(*range(8)))  # four parts of 20 would keep four of eight busy
        await settle()
        assert [(batch.tokens, batch.alone) for batch in s.device.batches] == [(80, True)]
    async with stage(slots=8, split_tokens=10) as s:
        s.submit(rows(*range(8)))
        await settle()
        assert [(batch.tokens, batch.alone) for batch in s.device.batches] == [(10, False)] * 8


async def test_times_say_how_long_a_request_waited_and_ran() -> None:
    async with stage() as s:
        s.submit(rows("before"))
        await settle()
        ticket = s.submit(rows(*range(20)))
        s.clock.advance(2.0)
        assert s.scheduler.oldest_age_s == 2.0
        s.device.finish()
        await settle()
        s.clock.advance(3.0)
        await s.finish_all()
        assert (ticket.submission.queue_s, ticket.submission.inference_s) == (2.0, 3.0)
        assert s.scheduler.oldest_age_s == 0.0


async def test_nobody_is_left_waiting_when_the_scheduler_is_stopped() -> None:
    s = Stage()
    running = asyncio.create_task(s.scheduler.run())
    tickets = [s.submit(rows(*range(8))) for _ in range(3)]
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for ticket in tickets:
        with pytest.raises(Draining):
            await ticket.result()
    with pytest.raises(Draining):
        s.submit(rows("after"))
    assert s.scheduler.queued_tokens == s.scheduler.in_flight_rows == 0


async def calls_per_batch(requests: int) -> float:
    """Serve so many requests of 100 rows in small batches, and count the function calls."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async with stage(max_queue_tokens=10**6, slots=2, split_tokens=128, max_age_s=0.5) as s:
        for _ in range(requests):
            s.submit(rows(*range(100)))
        await settle()
        sys.setprofile(count)
        try:
            while s.device.running:
                s.clock.advance(0.1)
                s.device.finish()
                await settle()
        finally:
            sys.setprofile(None)
        return calls / len(s.device.batches)


async def test_a_batch_costs_the_same_however_much_waits() -> None:
    assert await calls_per_batch(100) < 1.5 * await calls_per_batch(2)


async def test_work_that_has_begun_may_finish_after_its_deadline() -> None:
    async with stage() as s:
        ticket = s.submit(rows("begun"), deadline=s.clock() + 1.0)
        await settle()
        s.clock.advance(5.0)
        s.device.finish()
        assert await ticket.result() == [result_of("begun")]
