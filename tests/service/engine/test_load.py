"""The load of a replica: what callers ask for, whatever admission makes of it."""

import contextlib

import pytest

from headroom.service.engine.admission import WINDOW_S, Load
from headroom.service.engine.sizing import TokenRate
from headroom.service.errors import QueueFull
from tests.service.engine.stage import FakeClock, rows, settle, stage

RATE = 66 * 25.0
"""Tokens per second of BERT-base on one core of the EPYC of docs/operations.md."""


async def test_refused_requests_count_where_the_queue_never_gets_long() -> None:
    """Without them, a replica that refuses half of its requests would look as if it were just busy."""
    async with stage(tokens_per_second=RATE, max_wait_s=1.0, max_batch_tokens=1024) as s:
        refused = 0
        ends = 0.0
        for step in range(600):  # 30 s: a request each 0.15 s, of 500 tokens
            if step % 3 == 0:
                with contextlib.suppress(QueueFull):
                    s.submit(rows(*range(20), tokens=25))
                    refused -= 1
                refused += 1
            await settle()
            s.clock.advance(0.05)
            if s.device.running and not ends:
                ends = s.clock() + s.device.running[0][0].tokens / RATE
            if ends and s.clock() >= ends:
                s.device.finish()
                ends = 0.0
            s.scheduler.load.update()
        assert 0.4 < refused / 200 < 0.6
        assert s.measured_rate is not None
        assert s.scheduler.load.value == pytest.approx(500 / 0.15 / s.measured_rate, rel=0.05)


async def test_work_that_nobody_waits_for_is_no_load_and_a_busy_time_is_forgotten() -> None:
    async with stage(tokens_per_second=100.0) as s:
        s.submit(rows(*range(50)), background=True)
        assert s.scheduler.load.update() == 0
        s.submit(rows(*range(50)))
        assert s.scheduler.load.update() == pytest.approx(5.0 / WINDOW_S)
        s.clock.advance(WINDOW_S / 2)
        assert s.scheduler.load.update() == pytest.approx(5.0 / WINDOW_S)
        s.submit(rows(*range(50)))
        s.clock.advance(2 * WINDOW_S)  # the event loop stood still
        assert s.scheduler.load.update() == pytest.approx(5.0 / (2 * WINDOW_S))
        s.clock.advance(WINDOW_S)
        assert s.scheduler.load.update() == 0


def test_beside_a_gpu_the_interpreter_counts_if_it_is_busier() -> None:
    """On an H200 one replica was full while its GPU was busy for 29 % of the time (docs/decisions/014)."""
    clock = FakeClock()
    processor_s = 0.0
    load = Load(TokenRate(100.0), clock, lambda: processor_s)
    load.ask(290)
    clock.advance(WINDOW_S)
    processor_s += 9.5
    assert load.update() == pytest.approx(0.95)
    load.ask(1500)
    clock.advance(WINDOW_S)
    processor_s += 9.5
    assert load.update() == pytest.approx(1.5)
