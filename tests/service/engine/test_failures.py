"""A batch that fails takes nobody else's work with it: bad items, a failed device, too little memory."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import DeviceFailed, OutOfMemory
from tests.service.engine.stage import names, result_of, rows, settle, stage


async def test_one_bad_item_fails_alone() -> None:
    async with stage() as s:
        tickets = [s.submit(rows(n)) for n in range(10)]
        await settle()
        while s.device.running:
            if 6 in names(s.device.running[0][0]):
                s.device.fail(ValueError("bad row"))
            else:
                s.device.finish()
            await settle()
        results = [(await ticket.result())[0] for ticket in tickets]
        assert isinstance(results.pop(6), ValueError)
        assert results == [result_of(n) for n in range(10) if n != 6]
        assert len(s.device.batches) <= 2 * 4 + 1
        assert set(s.device.budgets) == {100}


async def test_an_error_the_device_reports_for_one_item_stays_with_it() -> None:
    async with stage() as s:
        ticket = s.submit(rows("good", "bad"))
        await settle()
        error = ValueError("not finite")
        s.device.running.pop()[1].set_result(["good", error])
        assert await ticket.result() == ["good", error]


async def test_results_that_do_not_match_their_batch_are_never_handed_out() -> None:
    async with stage() as s:
        ticket = s.submit(rows(1))
        await settle()
        s.device.running.pop()[1].set_result(["mine", "whose?"])
        (result,) = await ticket.result()
        assert isinstance(result, RuntimeError)


@pytest.mark.parametrize("error", [DeviceFailed(), asyncio.CancelledError()])
async def test_a_failed_device_is_reported_to_all_and_asked_no_second_time(error: Exception) -> None:
    async with stage() as s:
        ticket = s.submit(rows(1, 2, 3))
        await settle()
        s.device.fail(error)
        assert [type(result) for result in await ticket.result()] == [DeviceFailed] * 3
        assert len(s.device.batches) == 1
        after = s.submit(rows("after"))
        await s.finish_all()
        assert await after.result() == [result_of("after")], "the slot was lost"


async def test_out_of_memory_halves_the_budget_and_loses_nothing() -> None:
    async with stage() as s:
        ticket = s.submit(rows(*range(30)))
        await settle()
        s.device.fail(OutOfMemory())
        await s.finish_all()
        assert [batch.tokens for batch in s.device.batches] == [100, 50, 50, 50, 50, 50, 50]
        assert s.device.budgets == [100] + [50] * 6
        assert await ticket.result() == [result_of(n) for n in range(30)]


async def test_two_batches_out_of_memory_at_once_halve_the_budget_once() -> None:
    async with stage(slots=2) as s:
        s.submit(rows(*range(20)))
        await settle()
        s.device.fail(OutOfMemory())
        s.device.fail(OutOfMemory())
        await settle()
        assert s.device.budgets == [100, 100, 50, 50]


async def test_the_budget_never_falls_below_an_item_and_a_hopeless_item_fails_alone() -> None:
    async with stage() as s:
        tickets = [s.submit(rows(tokens, tokens=tokens)) for tokens in (20, 60)]
        await settle()
        s.device.fail(OutOfMemory())
        await settle()
        s.device.finish()
        await settle()
        s.device.fail(OutOfMemory())
        assert await tickets[0].result() == [result_of(20)]
        assert isinstance((await tickets[1].result())[0], OutOfMemory)
        s.submit(rows("after"))
        await settle()
        assert s.device.budgets == [100, 60, 60, 60]


async def test_the_budget_grows_back_after_many_clean_batches() -> None:
    async with stage() as s:
        s.submit(rows(*range(10)))
        await settle()
        s.device.fail(OutOfMemory())
        await s.finish_all()
        seen = []
        for _ in range(200):
            s.submit(rows(*range(10)))
            await s.finish_all()
            seen.append(s.device.budgets[-1])
        assert seen == sorted(seen)
        assert (seen[0], seen[-1]) == (50, 100)
        assert len(set(seen)) > 3, "it grew back at once"
