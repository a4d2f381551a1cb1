"""A scheduler on a stage: time is a fake clock and the device a fake that finishes when told.

So every order of events can be played.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from service.engine.scheduler import Batch, Item, Observer, Scheduler


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeDevice(Observer):
    """Runs each batch until the test says how it ends; remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[Batch[Any]] = []
        self.running: list[tuple[Batch[Any], asyncio.Future[Sequence[Any]]]] = []
        self.budgets: list[int] = []

    async def run(self, batch: Batch[Any]) -> Sequence[Any]:
        done: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self.batches.append(batch)
        self.running.append((batch, done))
        return await done

    def finish(self, index: int = 0) -> None:
        batch, done = self.running.pop(index)
        done.set_result([result_of(item.payload) for item in batch.items])

    def fail(self, error: Exception, index: int = 0) -> None:
        self.running.pop(index)[1].set_exception(error)

    def on_batch(self, items: int, tokens: int, budget: int) -> None:  # noqa: ARG002
        self.budgets.append(budget)

    @property
    def payloads(self) -> list[list[Any]]:
        """What each batch so far was made of."""
        return [[item.payload for item in batch.items] for batch in self.batches]


def result_of(payload: Any) -> tuple[str, Any]:
    return ("score of", payload)


def items(*payloads: Any, tokens: int = 10, lane: str = "full") -> list[Item[Any]]:
    return [Item(tokens, lane, payload) for payload in payloads]


async def settle() -> None:
    """Let everything that is ready to go on go on: nothing here waits for more than ten turns of the loop."""
    for _ in range(10):
        await asyncio.sleep(0)


class Stage:
    """A scheduler with its fakes."""

    def __init__(self, **limits: Any) -> None:
        limits = {
            "max_batch_tokens": 100,
            "max_queue_tokens": 10_000,
            "max_request_tokens": 200_000,
            "max_age_s": 5.0,
        } | limits
        self.clock = FakeClock()
        self.device = FakeDevice()
        self.scheduler: Scheduler[Any, Any] = Scheduler(
            self.device.run,
            clock=self.clock,
            observer=self.device,
            **limits,
        )

    @property
    def measured_rate(self) -> float | None:
        """The tokens per second by which the scheduler admits requests."""
        return self.scheduler._rate.per_second

    async def finish_all(self) -> None:
        await settle()
        while self.device.running:
            self.device.finish()
            await settle()


@asynccontextmanager
async def stage(**limits: Any) -> AsyncIterator[Stage]:
    """A running stage; what is left on it at the end is finished, and must then leave nothing behind."""
    here = Stage(**limits)
    running = asyncio.create_task(here.scheduler.run())
    yield here
    draining = asyncio.create_task(here.scheduler.drain())
    await here.finish_all()
    assert draining.done(), "drain() hangs"
    await running
    assert not here.scheduler._tickets
    assert here.scheduler.queued_tokens == here.scheduler.in_flight_items == 0
