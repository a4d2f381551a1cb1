"""Seconds of traffic that is too much for the device: who is served, and how soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from service.engine.sizing import SLICE_S
from service.errors import QueueFull
from tests.service.engine.stage import Stage, rows, settle


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
                rows(*range(titles), tokens=tokens),
                deadline=inf if deadline_s is None else now + deadline_s,
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
