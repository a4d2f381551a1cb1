"""A scheduler on a stage: time is a fake clock and the device a fake that finishes when told.

So every order of events can be played.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headroom.service.engine.queue import FairQueue
from headroom.service.engine.request import Row, Submission
from headroom.service.engine.runner import Batch
from headroom.service.engine.scheduler import Scheduler


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeDevice:
    """Runs each batch until the test says how it ends; remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.running: list[tuple[Batch, asyncio.Future[Sequence[Any]]]] = []
        self.budgets: list[int] = []
        self.out_of_memories = 0

    async def run(self, batch: Batch) -> Sequence[Any]:
        done: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self.batches.append(batch)
        self.running.append((batch, done))
        return await done

    def finish(self, index: int = 0) -> None:
        batch, done = self.running.pop(index)
        done.set_result([result_of(name) for name in names(batch)])

    def fail(self, error: Exception, index: int = 0) -> None:
        self.running.pop(index)[1].set_exception(error)

    def batch(self, *, pairs: int, tokens: int, budget: int) -> None:  # noqa: ARG002
        self.budgets.append(budget)

    def out_of_memory(self) -> None:
        self.out_of_memories += 1

    @property
    def names(self) -> list[list[Any]]:
        """What each batch so far was made of."""
        return [names(batch) for batch in self.batches]


class Named(Row):
    """A row that a test knows by its name."""

    __slots__ = ("name",)

    def __init__(self, tokens: int, lane: str, name: Any = None) -> None:
        super().__init__(tokens, lane)
        self.name = name


def names(batch: Batch) -> list[Any]:
    return [row.name for row in batch.rows if isinstance(row, Named)]


def result_of(name: Any) -> tuple[str, Any]:
    return ("score of", name)


def rows(*names: Any, tokens: int = 10, lane: str = "full") -> list[Row]:
    return [Named(tokens, lane, name) for name in names]


class Owned(Submission):
    """A request that a test of the queue knows by its owner."""

    def __init__(self, owner: Any, rows: Sequence[Row], since: float) -> None:
        super().__init__(rows, since, math.inf, is_background=False)
        self.owner = owner


def push(queue: FairQueue, owner: Any, rows: Sequence[Row], *, now: float) -> Owned:
    request = Owned(owner, rows, now)
    queue.push(request, rows)
    return request


def owners_of(rows: Sequence[Row]) -> list[Any]:
    return [row.submission.owner for row in rows if isinstance(row.submission, Owned)]


class Ticket:
    """A request as its caller knows it: its rows, and the wait for them."""

    def __init__(self, scheduler: Scheduler, rows: Sequence[Row], **options: Any) -> None:
        self.scheduler = scheduler
        self.rows = rows
        self.submission: Submission = scheduler.submit(rows, **options)

    async def result(self) -> list[Any]:
        await self.scheduler.result(self.submission)
        return [row.result for row in self.rows]

    def cancel(self) -> None:
        self.scheduler.cancel(self.submission)


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
        self.scheduler = Scheduler(self.device.run, clock=self.clock, observer=self.device, **limits)

    def submit(self, rows: Sequence[Row], **options: Any) -> Ticket:
        return Ticket(self.scheduler, rows, **options)

    @property
    def measured_rate(self) -> float | None:
        """The tokens per second by which the scheduler admits requests."""
        return self.scheduler._rate.per_second

    async def busy(self) -> None:
        """Give a slot one row to run."""
        self.submit(rows("busy"))
        await settle()

    async def run(self, titles: int, seconds: float, *, times: int = 1) -> None:
        """Run requests of so many titles, one after the other, in so many seconds each."""
        for _ in range(times):
            self.submit(rows(*range(titles)))
            await settle()
            self.clock.advance(seconds)
            await self.finish_all()

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
    assert not here.scheduler._requests
    assert here.scheduler.queued_tokens == here.scheduler.in_flight_rows == 0
