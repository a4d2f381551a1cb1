"""The measured token rate, on which admission, Retry-After and the size of slices rest."""

import asyncio
import heapq
import random
from collections.abc import Sequence
from typing import Any

import pytest

from headroom.service.engine.runner import Batch
from headroom.service.engine.sizing import TokenRate
from tests.service.engine.stage import Stage, rows, settle, stage

DEVICE = 20_000.0
"""Tokens per second of a device whose slots all work; each does its part."""
BUDGET = 1024
AT_ONCE_S = 0.001
"""Batches that begin together end within this time."""

any_slots = pytest.mark.parametrize("slots", [1, 2, 4, 16])


def run_sets(rate: TokenRate, slots: int, tokens: int, sets: int) -> None:
    """Run batches of so many tokens in all slots, again and again; the slots wait for each other."""
    chance, now = random.Random(1), 0.0
    for _ in range(sets):
        marks = [rate.device_clock(now, passes=1) for _ in range(slots)]
        end = now + slots * tokens / DEVICE
        for mark, late in zip(marks, sorted(chance.uniform(0, AT_ONCE_S) for _ in marks), strict=True):
            now = end + late
            rate.record(tokens, rate.device_clock(now, passes=-1) - mark, budget=BUDGET)
        now += 0.01


@any_slots
@pytest.mark.parametrize("tokens", [60, 100, 128, 250])
def test_small_batches_that_end_together_do_not_make_the_device_look_fast(slots: int, tokens: int) -> None:
    """However many of them make up a quarter of the budget: that may be less than one of each slot."""
    rate = TokenRate(None)
    run_sets(rate, slots, BUDGET, 30)
    assert rate.per_second == pytest.approx(DEVICE, rel=0.2)
    run_sets(rate, slots, tokens, 500)
    assert rate.per_second == pytest.approx(DEVICE, rel=0.2)


@any_slots
def test_slots_that_are_never_idle_together_are_measured_too(slots: int) -> None:
    """Small batches that end again and again beside a large one do not take its time away."""
    rate, chance = TokenRate(None), random.Random(1)
    ends: list[tuple[float, int, float]] = []  # when, its tokens, its mark

    def begin(now: float) -> None:
        tokens = chance.choice([40, 100, 200, BUDGET // 2, BUDGET])
        heapq.heappush(ends, (now + slots * tokens / DEVICE, tokens, rate.device_clock(now, passes=1)))

    for _ in range(slots):
        begin(0.0)
    measured = []
    for _ in range(3000):
        now, tokens, mark = heapq.heappop(ends)
        rate.record(tokens, rate.device_clock(now, passes=-1) - mark, budget=BUDGET)
        measured.append(rate.per_second)
        begin(now)
    assert measured == pytest.approx([DEVICE] * 3000, rel=0.2)


class Machine:
    """A scheduler on such a device."""

    def __init__(self, here: Stage, slots: int) -> None:
        self.stage = here
        self.slots = slots
        self.stall_s = 0.0
        self._chance = random.Random(1)
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        here.scheduler._runner.forward = self._compute

    async def answer(self, titles: int) -> None:
        """Answer a request of so many titles, of 20 tokens each."""
        ticket = self.stage.submit(rows(*range(titles), tokens=20))
        await settle()
        while ticket.submission.is_open:
            end, _, done = heapq.heappop(self._ends)
            self.stage.clock.advance(end - self.stage.clock())
            done.set_result(None)
            await settle()

    async def _compute(self, batch: Batch) -> Sequence[Any]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seconds = self.slots * batch.tokens / DEVICE + self._chance.uniform(0, AT_ONCE_S) + self.stall_s
        heapq.heappush(self._ends, (self.stage.clock() + seconds, id(done), done))
        await done
        return [None] * len(batch.rows)


@any_slots
async def test_requests_one_by_one_neither_raise_the_rate_nor_keep_it_low_after_a_stall(slots: int) -> None:
    """Too high, and a rush is let in that cannot be served; too low, and half of the load is refused."""
    limits = {"max_batch_tokens": BUDGET, "split_tokens": 128, "tokens_per_second": DEVICE}
    async with stage(slots=slots, **limits) as here:
        machine = Machine(here, slots)
        await machine.answer(slots * BUDGET // 20)
        for _ in range(60):
            await machine.answer(7 * slots)  # one small batch per slot
        assert here.measured_rate == pytest.approx(DEVICE, rel=0.2)
        machine.stall_s = 30.0
        await machine.answer(slots * BUDGET // 20)
        machine.stall_s = 0.0
        assert here.measured_rate is not None
        assert here.measured_rate < DEVICE / 2
        for _ in range(150):
            await machine.answer(7 * slots)
        assert here.measured_rate == pytest.approx(DEVICE, rel=0.2)


def test_small_batches_do_not_replace_the_rate_of_the_warm_up() -> None:
    """The first single titles of a new replica must not make a burst after them look hopeless."""
    rate = TokenRate(DEVICE)
    for _ in range(3):
        rate.record(15, 0.0025, budget=BUDGET)
    assert rate.per_second == DEVICE
    rate.record(BUDGET, 2 * BUDGET / DEVICE, budget=BUDGET)
    assert rate.per_second == DEVICE / 2
