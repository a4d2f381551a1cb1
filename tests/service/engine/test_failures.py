"""Batches that fail take nobody else's work with them; later stages and background work."""

import asyncio

import pytest

from headroom.service.errors import DeviceFailed, Draining, OutOfMemory, QueueFull
from tests.service.engine.stage import result_of, rows, settle, stage


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
        results = await ticket.result()
        assert [type(result) for result in results] == [DeviceFailed] * 3
        assert len({id(result) for result in results}) == 3, (
            "its traceback would grow with each that raises it"
        )
        assert len(s.device.batches) == 1
        after = s.submit(rows("after"))
        await s.finish_all()
        assert await after.result() == [result_of("after")], "the slot was lost"


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


async def test_a_later_stage_of_a_request_that_was_let_in_is_not_refused() -> None:
    async with stage(max_queue_tokens=50) as s:
        s.submit(rows("runs"))
        await settle()
        s.submit(rows(*range(5)))
        s.submit(rows(*range(5, 10)))
        with pytest.raises(QueueFull):
            s.submit(rows(*range(20)))
        later = s.submit(rows(*range(20)), admitted=True)
        await s.finish_all()
        assert await later.result() == [result_of(n) for n in range(20)]


async def test_a_later_stage_is_in_time_if_what_is_before_it_and_it_fit() -> None:
    """What is behind it in the fair order does not count."""
    async with stage(tokens_per_second=100.0) as s:
        s.submit(rows(*range(2)))  # 20 tokens in flight
        await settle()
        assert s.scheduler.is_in_time(80, s.clock() + 1.0)
        assert not s.scheduler.is_in_time(81, s.clock() + 1.0)
        s.submit(rows(*range(10), tokens=100))
        assert s.scheduler.is_in_time(40, s.clock() + 1.0), "at most as much of the long one is before it"
        assert not s.scheduler.is_in_time(41, s.clock() + 1.0)
    async with stage() as s:
        assert s.scheduler.is_in_time(10**9, s.clock() + 1.0), "while the rate is not known"
        assert not s.scheduler.is_in_time(1, s.clock())


async def test_background_work_runs_only_while_nothing_else_waits_or_runs() -> None:
    async with stage(slots=2) as s:
        first = s.submit(rows("first"))
        background = s.submit(rows(*range(30)), background=True)
        await settle()
        assert s.device.names == [["first"]], "one slot is idle, but the device is not"
        assert s.scheduler.queued_tokens == 0
        s.device.finish()
        await first.result()
        await settle()
        assert s.device.names[1:] == [list(range(10))]
        assert s.scheduler.tokens == 0, "no replica is added for it"
        user = s.submit(rows("user"))
        await settle()
        assert s.device.names[2:] == [["user"]], "it starts beside the batch that runs"
        s.device.finish()
        await settle()
        assert len(s.device.batches) == 3, "the user's batch still runs"
        await s.finish_all()
        assert await user.result() == [result_of("user")]
        assert await background.result() == [result_of(n) for n in range(30)]
        assert s.device.budgets == [100, 100], "the metrics tell of the users' batches alone"


async def test_a_user_waits_for_one_small_batch_of_background_work() -> None:
    async with stage(max_batch_tokens=800, tokens_per_second=10_000.0) as s:
        s.submit(rows(*range(1000)), background=True)
        await settle()
        assert s.device.batches[0].tokens == 200, "20 ms at the device's rate"
        user = s.submit(rows("user"), deadline=s.clock() + 1.0)
        s.device.finish()
        await settle()
        assert s.device.names[1] == ["user"]
        await s.finish_all()
        assert await user.result() == [result_of("user")]


async def test_nobody_is_refused_for_background_work_and_a_stop_does_not_wait_for_it() -> None:
    async with stage(max_queue_tokens=50, max_request_tokens=50) as s:
        background = s.submit(rows(*range(1000)), background=True)
        await settle()
        users = [s.submit(rows(*range(5))) for _ in range(2)]
        draining = asyncio.create_task(s.scheduler.drain())
        await s.finish_all()
        assert draining.done()
        for user in users:
            assert len(await user.result()) == 5
        with pytest.raises(Draining):
            await background.result()
        assert len(s.device.batches) <= 3


async def test_background_work_that_is_given_up_leaves_nothing() -> None:
    async with stage() as s:
        s.submit(rows("busy"))
        background = s.submit(rows(*range(100)), background=True)
        await settle()
        background.cancel()
        await s.finish_all()
        assert s.device.names == [["busy"]]
        assert s.scheduler._background.rows == 0
