"""A rush: the event loop lets arrivals gather while nothing could start, and at no other time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from service.engine.coalescing import MAX_BLOCK_S, RUSH_REQUESTS, SETTLING_TURNS
from tests.service.engine.stage import Stage, items, settle, stage
from tests.service.in_process import QUERY, TITLES, serve

BATCH = range(10)
"""Items that fill a batch of the stage."""


async def pass_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_the_loop_blocks_from_the_request_that_makes_a_rush_until_the_rush_is_over() -> None:
    waits: list[float] = []
    async with stage(slots=2, wait_for_pass=waits.append) as s:
        for _ in range(RUSH_REQUESTS - 1):
            s.scheduler.submit(items(*BATCH))
        await pass_turns(5 * SETTLING_TURNS)
        assert not waits
        s.scheduler.submit(items(*BATCH))
        await pass_turns(5 * SETTLING_TURNS)
        assert len(waits) in (4, 5)
        assert set(waits) == {MAX_BLOCK_S}
        s.device.finish()
        await pass_turns(2 * SETTLING_TURNS)  # it noticed
        waits.clear()
        await pass_turns(5 * SETTLING_TURNS)
        assert not waits
        s.scheduler.submit(items(*BATCH))
        await pass_turns(2 * SETTLING_TURNS)
        assert waits, "a second rush"


@pytest.mark.parametrize(
    "sizes",
    [[1] * RUSH_REQUESTS, [100] * (RUSH_REQUESTS - 1)],
    ids=["the next batch has room", "few and long"],
)
async def test_the_loop_stays_awake_for_what_could_go_into_the_next_batch(sizes: list[int]) -> None:
    waits: list[float] = []
    async with stage(wait_for_pass=waits.append) as s:
        for size in sizes:
            s.scheduler.submit(items(*range(size)))
            await settle()
        assert not waits


async def test_results_are_on_their_way_before_the_loop_blocks_again() -> None:
    waits: list[Stage] = []
    answered: list[int] = []

    async def ask(s: Stage, number: int) -> None:
        await s.scheduler.submit(items(*BATCH)).result()
        answered.append(number)

    async with stage(wait_for_pass=lambda _: waits.append(s)) as s, asyncio.TaskGroup() as requests:
        for number in range(RUSH_REQUESTS + 5):
            requests.create_task(ask(s, number))
            await asyncio.sleep(0)
        for finished in range(5):
            before = len(waits)
            while len(waits) == before:
                await asyncio.sleep(0)
            s.device.finish()  # as if during the wait
            before = len(waits)
            while len(waits) == before:
                await asyncio.sleep(0)
            assert answered == list(range(finished + 1))
        await s.finish_all()


class Counted(threading.Event):
    """Counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


async def test_a_rush_on_a_replica_gets_the_answers_of_a_quiet_hour(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=2**20, max_queue_s=60) as service:
        engine = service.replica.engine
        engine._pass_ended = counted = Counted()
        alone = await service.post("/v1/score", query=QUERY, titles=TITLES)
        assert not counted.waits
        asking = []
        for _ in range(200):  # one after the other, as from sockets
            asking.append(asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES)))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*asking)
        assert counted.waits
        for answer in answers:
            assert [row["grade"] for row in answer["results"]] == [row["grade"] for row in alone["results"]]


async def test_the_wait_for_a_pass_ends_with_the_pass(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint) as service:
        engine = service.replica.engine
        engine.wait_for_pass(0)  # the warm-up is forgotten
        waiting = asyncio.create_task(asyncio.to_thread(engine.wait_for_pass, 60))
        await service.post("/v1/score", query=QUERY, titles=TITLES)
        async with asyncio.timeout(30):
            await waiting
