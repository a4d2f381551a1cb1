"""service.api.post.answer: who ends the wait, and that the work lets go first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.api.post import answer
from service.errors import ClientDisconnected, DeadlineExceeded


class Client:
    """Its connection's receiving end."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Takes as long as it is told, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = False

    async def run(self, seconds: float = 60.0) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.let_go = True
            raise
        return "done"


async def test_the_result_comes_back_and_nothing_keeps_running() -> None:
    before = asyncio.all_tasks()
    assert await answer(Work().run(0), Client().receive, timeout_s=5) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("timeout_s", [0.01, 0.0, -1.0])
async def test_time_that_runs_out_ends_the_work(timeout_s: float) -> None:
    work = Work()
    with pytest.raises(DeadlineExceeded):
        await answer(work.run(), Client().receive, timeout_s=timeout_s)
    assert work.let_go


async def test_a_client_that_hangs_up_as_time_runs_out_is_no_cancellation() -> None:
    client, work = Client(), Work()

    async def both() -> None:
        await work.begun.wait()
        await asyncio.sleep(0.02)
        client.gone.set()

    ending = asyncio.create_task(both())
    with pytest.raises((ClientDisconnected, DeadlineExceeded)):
        await answer(work.run(), client.receive, timeout_s=0.02)
    await ending
    assert work.let_go


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_who_is_cancelled_from_outside_stays_cancelled(hangs_up: bool) -> None:
    client, work = Client(), Work()
    waiting = asyncio.create_task(answer(work.run(), client.receive, timeout_s=60))
    await work.begun.wait()
    if hangs_up:
        client.gone.set()
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.let_go


async def test_the_works_own_timeout_is_not_the_deadline() -> None:
    async def impatient() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await answer(impatient(), Client().receive, timeout_s=60)


async def test_a_client_that_hangs_up_as_its_answer_comes_does_not_cancel_what_follows() -> None:
    client, finished = Client(), asyncio.Event()

    async def work() -> str:
        await finished.wait()
        return "done"

    async def request() -> str:
        result = await answer(work(), client.receive, timeout_s=60)
        await asyncio.sleep(0.01)  # it sends the answer
        return result

    waiting = asyncio.create_task(request())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    client.gone.set()  # the watch ends in the same turn of the loop as the work
    finished.set()
    assert await waiting == "done"
