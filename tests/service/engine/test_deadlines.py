"""Work that is late or that nobody waits for any more is dropped, and its waiter told."""

from __future__ import annotations

import pytest

from service.errors import DeadlineExceeded
from tests.service.engine.stage import result_of, rows, settle, stage


async def test_late_work_is_dropped_and_its_waiter_told() -> None:
    async with stage() as s:
        await s.busy()
        ticket = s.submit(rows("late", "too"), deadline=s.clock() + 1.0)
        s.clock.advance(1.0)
        await s.finish_all()
        assert s.scheduler.queued_tokens == 0
        with pytest.raises(DeadlineExceeded):
            await ticket.result()
        assert s.device.names == [["busy"]]


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


async def test_a_finished_request_can_be_cancelled_to_no_effect() -> None:
    async with stage() as s:
        ticket = s.submit(rows(1))
        await s.finish_all()
        ticket.cancel()
        assert await ticket.result() == [result_of(1)]
