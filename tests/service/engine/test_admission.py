"""What is let into the queue, what a refused request is told, and who is served under too much traffic."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.service.engine.admission import TOO_LATE
from headroom.service.engine.sizing import SLICE_S
from headroom.service.errors import QueueFull
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


class Day:
    """Traffic on a device that does RATE tokens a second, on the fake clock: who got what, and when."""

    RATE = 10_000.0

    def __init__(self, **limits: Any) -> None:
        limits = {"max_batch_tokens": 1000, "max_queue_tokens": 5000, "max_age_s": 0.5} | limits
        self.stage = Stage(tokens_per_second=self.RATE, **limits)
        self.latencies: dict[str, list[float]] = {"ok": [], "late": [], "refused": []}
        self._waiting: list[tuple[asyncio.Task[Any], float]] = []
        self._ends = 0.0

    def send(self, titles: int, *, tokens: int = 10, deadline_s: float | None = None) -> bool:
        """Whether it was let in."""
        now = self.stage.clock()
        try:
            ticket = self.stage.submit(
                rows(*range(titles), tokens=tokens), deadline=inf if deadline_s is None else now + deadline_s
            )
        except QueueFull:
            self.latencies["refused"].append(0.0)
            return False
        self._waiting.append((asyncio.ensure_future(ticket.result()), now))
        return True

    async def traffic(self, seconds: float, per_second: float, send: Callable[[], object]) -> None:
        """Serve for so long; `send` is called at random times."""
        running = asyncio.create_task(self.stage.scheduler.run())
        at, luck = self.stage.clock(), random.Random(1)
        end = at + seconds
        while at < end:
            send()
            at += luck.expovariate(per_second)
            await self.until(min(at, end))
        running.cancel()
        await asyncio.wait([running])

    async def until(self, end: float) -> None:
        """Lets the device work until so many seconds have passed since the start."""
        clock, device = self.stage.clock, self.stage.device
        await settle()
        while True:
            if device.running and not self._ends:
                self._ends = clock() + device.running[0][0].tokens / self.RATE
            if not self._ends or self._ends > end:
                break
            clock.advance(self._ends - clock())
            self._ends = 0.0
            device.finish()
            await settle()
            self._note()
        clock.advance(end - clock())
        await settle()
        self._note()

    def _note(self) -> None:
        for waiter, since in [entry for entry in self._waiting if entry[0].done()]:
            self._waiting.remove((waiter, since))
            kind = "late" if waiter.exception() else "ok"
            self.latencies[kind].append(self.stage.clock() - since)


async def test_at_twice_the_capacity_half_is_served_in_time_and_half_refused_at_once() -> None:
    day = Day(max_wait_s=1.0)
    # Requests of 200 tokens, fifty of which would be all that the device can do in a second.
    await day.traffic(20.0, 100.0, lambda: day.send(20, deadline_s=2.0))
    assert len(day.latencies["ok"]) >= 0.95 * 20 * 50
    assert day.latencies["late"] == []
    assert max(day.latencies["ok"]) < 1.6


@pytest.mark.parametrize(
    ("title_tokens", "tokens", "per_second", "seconds", "long_ones", "limit_s"),
    [
        (10, 10, 20.0, 20.0, 12, 2.5 * SLICE_S),  # the batch that runs and its own
        # Two single titles may come together. No part of the long request runs in their batch.
        (128, 30, 8.0, 40.0, 3, (128 + 2 * 30) / Day.RATE),
    ],
)
async def test_single_titles_stay_quick_beside_a_client_with_thousands(
    title_tokens: int, tokens: int, per_second: float, seconds: float, long_ones: int, limit_s: float
) -> None:
    day, sent = Day(max_wait_s=1.0), 0

    def send() -> None:
        nonlocal sent
        if not day.stage.scheduler.queued_tokens:  # the long one is answered: the client sends the next
            sent += day.send(1000, tokens=title_tokens)
        assert day.send(1, tokens=tokens), "a single title was refused"

    await day.traffic(seconds, per_second, send)
    quick = sorted(latency for latency in day.latencies["ok"] if latency < 0.5)
    assert sent >= long_ones
    assert len(quick) >= 0.75 * seconds * per_second
    assert quick[int(0.99 * len(quick))] <= limit_s
