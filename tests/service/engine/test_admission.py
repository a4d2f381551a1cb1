"""What is let into the queue, and what a request is told that is not."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.admission import TOO_LATE
from service.errors import QueueFull
from tests.service.engine.stage import Stage, rows, settle, stage


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with stage(max_queue_tokens=500) as s:
        await s.run(10, 2.0, times=20)  # 50 tokens a second
        await s.busy()
        s.submit(rows(*range(70)))
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(70)))
        assert refused.value.retry_after == pytest.approx(200 / 50)
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(20_000)))
        assert refused.value.retry_after == pytest.approx(200 / 50), (
            "longer than the queue takes to have room"
        )
        assert s.scheduler.queued_tokens == 700


async def test_batches_that_run_side_by_side_count_as_twice_the_speed() -> None:
    async with stage(max_queue_tokens=500, slots=2) as s:
        await s.run(20, 2.0, times=20)  # 100 tokens a second
        s.submit(rows(*range(20)))
        await settle()
        s.submit(rows(*range(80)))
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(80)))
        assert refused.value.retry_after == pytest.approx(300 / 100, rel=0.1)


async def test_an_idle_queue_takes_a_request_larger_than_its_limit() -> None:
    async with stage(max_queue_tokens=50) as s:
        ticket = s.submit(rows(*range(100)))
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(100)))
        assert refused.value.retry_after == 1.0
        await s.finish_all()
        assert len(await ticket.result()) == 100


@given(
    requests=st.lists(st.integers(1, 300), max_size=60),  # titles of ten tokens
    small=st.integers(1, 100),
)
def test_no_crowd_of_long_requests_shuts_out_a_short_one_or_fills_the_memory(
    requests: list[int], small: int
) -> None:
    """A short one has to wait for as much of each other request as it holds itself; only that counts."""

    async def crowd() -> None:
        s = Stage(max_queue_tokens=1000, max_request_tokens=3000)
        waiting = 0
        for titles in [300, *requests]:
            with contextlib.suppress(QueueFull):
                s.submit(rows(*range(max(titles, 100))))
                waiting += 1
            assert s.scheduler.queued_tokens <= 1000 + 3000, "they took the room that is for shorter ones"
        if waiting * 10 * small <= 1000:
            s.submit(rows(*range(small)))
        for titles in requests * 3:
            with contextlib.suppress(QueueFull):
                s.submit(rows(*range(titles)))
            assert s.scheduler.queued_tokens <= 2 * 1000 + 3000

    asyncio.run(crowd())


async def test_what_a_request_would_wait_for_is_limited_in_seconds() -> None:
    async with stage(max_wait_s=2.0, tokens_per_second=100.0) as s:
        await s.busy()
        s.submit(rows(*range(20)))
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(30)))
        assert refused.value.retry_after == 1.0
        short = s.submit(rows("it passes them, and waits for next to nothing"))
        await s.finish_all()
        assert len(await short.result()) == 1


async def test_the_limit_on_the_wait_follows_the_measured_rate() -> None:
    async with stage(max_wait_s=2.0, tokens_per_second=1000.0) as s:
        await s.run(10, 2.0, times=3)  # it does 50 tokens a second
        assert s.measured_rate == pytest.approx(50)
        s.submit(rows(*range(10)))
        await settle()
        s.submit(rows(*range(5)))
        with pytest.raises(QueueFull):
            s.submit(rows(*range(6)))


async def test_a_long_request_is_taken_beside_short_ones_that_never_stop() -> None:
    """It would wait for little, whatever its own size: only what is before it counts."""
    async with stage(max_wait_s=1.0, tokens_per_second=100.0) as s:
        await s.busy()
        s.submit(rows("short"))
        ticket = s.submit(rows(*range(500)))
        await s.finish_all()
        assert len(await ticket.result()) == 500


async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    async with stage(tokens_per_second=100.0) as s:
        s.submit(rows(*range(10)))
        await settle()
        s.submit(rows(*range(10)))
        with pytest.raises(QueueFull) as refused:
            s.submit(rows(*range(10)), deadline=s.clock() + 2.5)
        assert refused.value.message == TOO_LATE
        in_time = s.submit(rows(*range(10)), deadline=s.clock() + 3.5)
        for _ in range(3):
            s.clock.advance(1.0)
            await settle()
            s.device.finish()
            await settle()
        assert len(await in_time.result()) == 10


async def test_small_batches_do_not_make_the_device_look_slow() -> None:
    """An idle hour of single titles must not be what the first rush is judged by."""
    async with stage() as s:
        await s.run(10, 1.0)
        await s.run(1, 0.9, times=50)
        assert s.measured_rate == pytest.approx(100)


async def test_small_batches_side_by_side_do_not_make_the_device_look_fast() -> None:
    """The second of two that end together adds no time."""
    async with stage(slots=2) as s:
        await s.run(10, 1.0)
        for _ in range(50):
            for _ in range(2):
                s.submit(rows("one title"))
                await settle()
            s.clock.advance(0.9)
            await s.finish_all()
        assert s.measured_rate == pytest.approx(100)


async def test_after_a_stall_of_a_minute_single_titles_are_let_in_again() -> None:
    """Else the rate stays so low that no well-filled batch, which alone would mend it, can come about."""

    async def rush(s: Stage, stall_s: float = 0.0) -> int:
        """Send ten titles at once, and return how many were let in. The device does 1,000 tokens a second."""
        taken = 0
        for title in range(10):
            with contextlib.suppress(QueueFull):
                s.submit(rows(title))
                taken += 1
        await settle()
        s.clock.advance(0.001 * s.scheduler.in_flight_rows * 10 + stall_s)
        await s.finish_all()
        return taken

    async with stage(max_wait_s=1.0) as s:
        assert [await rush(s) for _ in range(3)] == [10] * 3
        assert await rush(s, stall_s=60.0) == 10
        assert await rush(s) < 3
        for _ in range(100):
            await rush(s)
        assert await rush(s) == 10
        assert s.measured_rate == pytest.approx(1000, rel=0.1)


async def test_a_request_larger_than_was_expected_is_let_in_while_others_wait() -> None:
    """Requests to a variant with a longer window than the base's got 429 as long as anything waited."""
    async with stage(max_queue_tokens=1000, max_request_tokens=500) as s:
        await s.busy()
        s.submit(rows("one that waits"))
        ticket = s.submit(rows(*range(400)))
        await s.finish_all()
        assert len(await ticket.result()) == 400
