"""The real scheduler under simulated traffic, on a simulated device, in virtual time.

The event loop jumps from timer to timer, so a run is exact, repeatable and independent of the machine. The
device has two cores and runs a batch on each, at rates measured with the shipped model on an EPYC: 2,561
pairs/s side by side, and 2.8 ms for one pair that is alone. A batch that is alone uses both cores, at 1.3
times the rate of one.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Any

from service.batching.scheduler import Batch, Item, Scheduler, Ticket
from service.errors import DeadlineExceeded, OutOfMemory, QueueFull

RUN_S = 20.0
RETRY_S = 0.1
TITLE_TOKENS = 25
PASS_S = 0.002
CORE_TOKENS_PER_S = 33_800.0
ALONE_FACTOR = 1.3
CORES = 2
BATCH_TOKENS = 1024
FULL_LOAD = CORES * BATCH_TOKENS / (PASS_S + BATCH_TOKENS / CORE_TOKENS_PER_S) / TITLE_TOKENS
"""Titles per second that the device does in full batches."""

LIMITS: dict[str, Any] = {
    "max_batch_tokens": BATCH_TOKENS,
    "max_queue_tokens": 64 * BATCH_TOKENS,
    "max_request_tokens": 512_000,
    "max_age_s": 0.5,
    "max_wait_s": 1.0,
    "tokens_per_second": CORES * CORE_TOKENS_PER_S,
    "slots": CORES,
    "split_tokens": 128,
}
"""The scheduler's limits, as the service sets them on two cores."""


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests: `load` of what the device can do, at random times, or one after the other if None.

    titles: the smallest and the largest request; sizes in between are drawn evenly on a logarithmic scale.
    """

    size: str
    titles: tuple[int, int]
    load: float | None
    title_tokens: int = TITLE_TOKENS
    lane: str = "full"
    deadline_s: float | None = None

    @property
    def mean_titles(self) -> float:
        low, high = self.titles
        return low if low == high else (high - low) / log(high / low)


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients, and the device's memory: a batch of more tokens fails until `memory_until` (seconds)."""

    clients: Sequence[Client]
    memory_tokens: float = inf
    memory_until: float = inf


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: time jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for another")
        self.now += max(0.0, timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds pass at once."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


@dataclass
class Run:
    """One workload, played once.

    latencies: seconds of each answered request. open_ages: how long each request that is still open at the
    end has waited.
    """

    workload: Workload
    seed: int
    latencies: dict[str, list[float]] = field(default_factory=lambda: {"small": [], "large": []})
    open_ages: dict[str, list[float]] = field(default_factory=lambda: {"small": [], "large": []})
    answered_titles: int = 0
    refused: int = 0
    late: int = 0

    def play(self) -> None:
        """Play the workload in virtual time."""
        with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
            runner.run(self._play())

    async def _play(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._scheduler: Scheduler[None, None] = Scheduler(self._forward, clock=self._clock, **LIMITS)
        self._open: dict[asyncio.Task[None], tuple[str, float]] = {}
        tasks = [asyncio.create_task(self._scheduler.run())]
        for number, client in enumerate(self.workload.clients):
            luck = random.Random(f"{self.seed} {number}")
            send = self._in_turn if client.load is None else self._at_random
            tasks.append(asyncio.create_task(send(client, luck)))
        await asyncio.sleep(RUN_S)
        for size, since in self._open.values():
            self.open_ages[size].append(RUN_S - since)
        tasks += self._open
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, batch: Batch[None]) -> Sequence[None]:
        rate = CORE_TOKENS_PER_S * (ALONE_FACTOR if batch.alone else 1.0)
        await asyncio.sleep(PASS_S + batch.tokens / rate)
        is_short_of_memory = self._clock() < self.workload.memory_until
        if is_short_of_memory and batch.tokens > self.workload.memory_tokens and len(batch.items) > 1:
            raise OutOfMemory
        return [None] * len(batch.items)

    async def _at_random(self, client: Client, luck: random.Random) -> None:
        assert client.load is not None
        requests_per_second = client.load * FULL_LOAD / client.mean_titles
        while True:
            await asyncio.sleep(luck.expovariate(requests_per_second))
            self._send(client, luck)

    async def _in_turn(self, client: Client, luck: random.Random) -> None:
        while True:
            request = self._send(client, luck)
            await (asyncio.sleep(RETRY_S) if request is None else asyncio.wait([request]))

    def _send(self, client: Client, luck: random.Random) -> asyncio.Task[None] | None:
        """Send one request; return the task that waits for its answer, or None if it was refused."""
        low, high = client.titles
        titles = round(exp(luck.uniform(log(low), log(high))))
        now = self._clock()
        deadline = None if client.deadline_s is None else now + client.deadline_s
        try:
            ticket = self._scheduler.submit(
                [Item(client.title_tokens, client.lane, None)] * titles, deadline=deadline
            )
        except QueueFull:
            self.refused += 1
            return None
        task = asyncio.create_task(self._wait(ticket, titles, client.size, now))
        self._open[task] = client.size, now
        task.add_done_callback(self._open.pop)
        return task

    async def _wait(self, ticket: Ticket[None], titles: int, size: str, sent: float) -> None:
        try:
            await ticket.result()
        except DeadlineExceeded:
            self.late += 1
            return
        self.latencies[size].append(self._clock() - sent)
        self.answered_titles += titles
