"""Work that is late or that nobody waits for any more is dropped, and its waiter told."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import DeadlineExceeded
from tests.service.engine.stage import result_of, rows, settle, stage


async def test_late_work_is_dropped_and_its_waiter_told() -> None:
    async with stage() as s:
        s.submit(rows("busy"))
        await settle()
        ticket = s.submit(rows("late", "too"), deadline=s.clock() + 1.0)
        s.clock.advance(1.0)
        await s.finish_all()
        assert s.scheduler.queued_tokens == 0
        with pytest.raises(DeadlineExceeded):
            await ticket.result()
        assert s.device.names == [["busy"]]


async def test_a_deadline_that_has_passed_already_never_reaches_the_device() -> None:
    async with stage() as s:
        ticket = s.submit(rows("late"), deadline=s.clock() - 1.0)
        in_time = s.submit(rows("in time"), deadline=s.clock() + 1.0)
        await s.finish_all()
        with pytest.raises(DeadlineExceeded):
            await ticket.result()
        assert await in_time.result() == [result_of("in time")]
        assert s.device.names == [["in time"]]


async def test_a_request_of_which_a_part_would_begin_late_is_dropped() -> None:
    async with stage(max_batch_tokens=10) as s:
        ticket = s.submit(rows("in time", "late"), deadline=s.clock() + 1.0)
        await settle()
        s.clock.advance(1.0)
        await s.finish_all()
        with pytest.raises(DeadlineExceeded):
            await ticket.result()
        assert s.device.names == [["in time"]]


async def test_work_that_has_begun_may_finish_after_its_deadline() -> None:
    async with stage() as s:
        ticket = s.submit(rows("begun"), deadline=s.clock() + 1.0)
        await settle()
        s.clock.advance(5.0)
        s.device.finish()
        assert await ticket.result() == [result_of("begun")]


async def test_who_hangs_up_has_queued_work_dropped_and_its_room_freed_at_once() -> None:
    async with stage() as s:
        s.submit(rows("busy"))
        await settle()
        ticket = s.submit(rows(*range(7)))
        other = s.submit(rows("other"))
        ticket.cancel()
        ticket.cancel()
        assert s.scheduler.queued_tokens == 10
        await s.finish_all()
        assert s.device.names == [["busy"], ["other"]]
        assert await other.result() == [result_of("other")]
        with pytest.raises(asyncio.CancelledError):
            await ticket.result()


async def test_a_cancelled_waiter_cancels_its_work() -> None:
    async with stage() as s:
        s.submit(rows("busy"))
        await settle()
        waiter = asyncio.create_task(s.submit(rows(1, 2)).result())
        await settle()
        waiter.cancel()
        await settle()
        assert waiter.cancelled()
        assert s.scheduler.queued_tokens == 0


async def test_a_finished_request_can_be_cancelled_to_no_effect() -> None:
    async with stage() as s:
        ticket = s.submit(rows(1))
        await s.finish_all()
        ticket.cancel()
        assert await ticket.result() == [result_of(1)]
