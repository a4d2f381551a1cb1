"""Texts are read in turns: short requests before long ones; too much text is refused before it is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from service.errors import Draining, QueueFull
from service.scoring import tokens
from service.scoring.tokens import CHARS_PER_SECOND, Encoder


class Gate:
    """Work whose first step waits until the gate opens."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def steps(self, name: str, log: list[str], count: int) -> Generator[None, None, str]:
        self.begun.set()
        assert self.open.wait(60)
        result = yield from steps(name, log, count)
        return result

    async def is_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0)


def steps(name: str, log: list[str], count: int) -> Generator[None, None, str]:
    for _ in range(count):
        log.append(name)
        yield
    return name


@pytest.fixture(autouse=True)
def _one_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TURN_S", 0.0)


async def test_a_short_request_overtakes_a_long_one() -> None:
    thread, gate, log = Encoder(), Gate(), list[str]()
    long = asyncio.create_task(thread.read(gate.steps("long", log, 50), 50_000))
    await gate.is_begun()
    short = asyncio.create_task(thread.read(steps("short", log, 2), 2_000))
    await asyncio.sleep(0)
    assert thread.waiting_chars == 52_000
    gate.open.set()

    assert (await short, await long) == ("short", "long")
    assert log.index("short") <= 2
    assert len(log) - log[::-1].index("short") < 10  # both of its turns came among the first
    assert thread.waiting_chars == 0
    thread.close()


async def test_what_would_wait_too_long_is_refused_unless_it_is_short() -> None:
    thread, gate, log = Encoder(max_wait_s=1.0), Gate(), list[str]()
    chars = int(10 * CHARS_PER_SECOND)
    first = asyncio.create_task(thread.read(gate.steps("first", log, 1), chars))  # nothing is ahead of it
    await gate.is_begun()
    with pytest.raises(QueueFull) as refusal:
        await thread.read(steps("second", log, 1), chars)
    assert refusal.value.retry_after == 10.0
    short = asyncio.create_task(thread.read(steps("short", log, 1), 1_000))
    await asyncio.sleep(0)
    gate.open.set()

    assert (await first, await short) == ("first", "short")
    assert "second" not in log
    thread.close()


async def test_requests_that_end_early_leave_the_thread_to_the_others() -> None:
    class Panic(BaseException):
        """As a panic of a library in Rust."""

    def broken() -> Generator[None, None, str]:
        yield
        raise Panic

    thread, gate, log = Encoder(), Gate(), list[str]()
    first = asyncio.create_task(thread.read(gate.steps("first", log, 9), 1_000))
    await gate.is_begun()
    others = [asyncio.create_task(thread.read(steps(f"{i}", log, 9), 1_000)) for i in range(4)]
    failing = asyncio.create_task(thread.read(broken(), 1_000))
    await asyncio.sleep(0)
    first.cancel()
    others[1].cancel()
    gate.open.set()

    results = await asyncio.gather(first, *others, failing, return_exceptions=True)
    assert [type(result) for result in results] == [
        asyncio.CancelledError,
        str,
        asyncio.CancelledError,
        str,
        str,
        Panic,
    ]
    assert thread.waiting_chars == 0
    assert await thread.read(steps("next", log, 1), 1_000) == "next"
    thread.close()


async def test_what_is_not_read_when_the_replica_ends_is_refused_as_by_a_stop() -> None:
    thread, gate, log = Encoder(), Gate(), list[str]()
    first = asyncio.create_task(thread.read(gate.steps("first", log, 1), 1_000))
    await gate.is_begun()
    second = asyncio.create_task(thread.read(steps("second", log, 1), 1_000))
    await asyncio.sleep(0)
    thread.close()
    gate.open.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [Draining, Draining]
    assert (log, thread.waiting_chars) == (["first"], 0)
