"""Requests in rounds: what a caller would lose if a later round were forgotten, late, or given up badly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.scheduler import Item, Round, Ticket
from service.errors import DeadlineExceeded, QueueFull
from tests.service.engine.stage import Stage
from tests.service.engine.test_scheduler import items, result_of, settle, stage


def then(*rounds: Round[Any]) -> Callable[[Sequence[Any]], Round[Any]]:
    """Return a `next_round` that gives these, one after the other."""
    coming = list(rounds)
    return lambda results: coming.pop(0) if coming and None not in results else Round(())


async def test_the_next_round_is_made_of_the_results_of_those_before_it() -> None:
    seen = []

    def better_half(results: Sequence[Any]) -> Round[Any]:
        seen.append(list(results))
        return Round(items("a2", "c2", lane="slow")) if len(results) == 4 else Round(())

    async with stage() as s:
        ticket = s.scheduler.submit(items(*"abcd"), next_round=better_half, later_tokens=20)
        waiter = asyncio.create_task(ticket.result())
        await settle()
        assert s.device.payloads == [list("abcd")]
        s.device.finish()
        await settle()
        assert s.device.payloads[1:] == [["a2", "c2"]], "the second round starts at once"
        assert not waiter.done()
        s.device.finish()
        await settle()
        assert await waiter == [result_of(name) for name in ("a", "b", "c", "d", "a2", "c2")]
        assert [len(results) for results in seen] == [4, 6]
        assert not ticket.is_cut_short


async def test_times_add_up_over_the_rounds() -> None:
    async with stage() as s:
        blocker = s.scheduler.submit(items("first"))
        await settle()
        ticket = s.scheduler.submit(items("a"), next_round=then(Round(items("b"))), later_tokens=10)
        s.clock.advance(1.0)
        s.device.finish()  # the blocker
        await settle()
        s.clock.advance(0.25)
        s.device.finish()
        await settle()
        s.clock.advance(0.5)
        s.device.finish()
        await ticket.result()
        await blocker.result()
        assert (ticket.queue_s, ticket.inference_s) == (1.0, 0.75)


async def test_a_request_that_is_drained_gets_its_later_rounds() -> None:
    async with stage(slots=2) as s:
        ticket = s.scheduler.submit(items("a"), next_round=then(Round(items("b"))), later_tokens=10)
        await settle()
        draining = asyncio.create_task(s.scheduler.drain())
        await settle()
        assert not draining.done()
        await s.finish_all()
        assert await ticket.result() == [result_of("a"), result_of("b")]


async def test_who_hangs_up_in_the_first_round_has_no_second() -> None:
    async with stage() as s:
        ticket = s.scheduler.submit(items("a"), next_round=then(Round(items("b"))), later_tokens=10)
        await settle()
        ticket.cancel()
        s.device.finish()
        await settle()
        assert s.device.payloads == [["a"]]
        assert s.scheduler._queue.later_tokens == 0
        with pytest.raises(asyncio.CancelledError):
            await ticket.result()


async def test_who_hangs_up_in_the_second_round_has_it_dropped() -> None:
    async with stage(max_batch_tokens=10) as s:
        ticket = s.scheduler.submit(items("a"), next_round=then(Round(items("b"))), later_tokens=10)
        await settle()
        s.scheduler.submit(items("other"))
        s.device.finish()
        await settle()
        assert s.device.payloads == [["a"], ["other"]]
        ticket.cancel()
        assert s.scheduler.queued_tokens == 0
        with pytest.raises(asyncio.CancelledError):
            await ticket.result()


async def with_room_for_80(s: Stage, tokens: int) -> Ticket[Any]:
    """Return a request with a second round of so many tokens, when 80 can be done before its deadline."""
    ticket: Ticket[Any] = s.scheduler.submit(
        items("a", "b"),
        next_round=then(Round(items("c", tokens=tokens))),
        later_tokens=tokens,
        deadline=s.clock.now + 1.0,
    )
    await settle()
    s.clock.advance(0.2)
    return ticket


async def test_a_round_that_would_be_late_is_left_out_and_the_ticket_says_so() -> None:
    async with stage(tokens_per_second=100.0) as s:
        ticket = await with_room_for_80(s, tokens=81)
        s.device.finish()
        assert await ticket.result() == [result_of("a"), result_of("b")]
        assert ticket.is_cut_short
        assert s.device.payloads == [["a", "b"]]
        assert s.scheduler._queue.later_tokens == 0


async def test_a_round_that_just_fits_is_not_left_out() -> None:
    """The batch that has brought its first results is done, and takes no more time."""
    async with stage(tokens_per_second=100.0) as s:
        ticket = await with_room_for_80(s, tokens=79)
        await s.finish_all()
        assert len(await ticket.result()) == 3
        assert not ticket.is_cut_short


async def test_a_round_that_is_in_time_beside_what_is_before_it_is_not_left_out() -> None:
    """What is behind it in the fair order does not make it late."""
    async with stage(tokens_per_second=100.0) as s:
        ticket = s.scheduler.submit(
            items("a"), next_round=then(Round(items("b"))), later_tokens=10, deadline=s.clock.now + 1.0
        )
        await settle()
        s.scheduler.submit(items(*range(9), tokens=30))
        s.clock.advance(0.1)
        s.device.finish()
        await settle()
        assert s.device.payloads[1][0] == "b"
        await s.finish_all()
        assert len(await ticket.result()) == 2
        assert not ticket.is_cut_short


async def test_a_round_that_waits_past_the_deadline_is_dropped_as_any_work() -> None:
    async with stage(max_batch_tokens=10) as s:
        ticket = s.scheduler.submit(
            items("a"), next_round=then(Round(items("b"))), later_tokens=10, deadline=s.clock.now + 1.0
        )
        await settle()
        s.scheduler.submit(items("other"))
        s.device.finish()
        await settle()
        assert s.device.payloads == [["a"], ["other"]]
        s.clock.advance(2.0)
        await s.finish_all()
        assert s.scheduler.queued_tokens == 0
        with pytest.raises(DeadlineExceeded):
            await ticket.result()


async def test_a_defect_in_making_a_round_fails_its_own_request_alone() -> None:
    def broken(_: Sequence[Any]) -> Round[Any]:
        raise ValueError("broken")

    async with stage() as s:
        ticket = s.scheduler.submit(items("a"), next_round=broken, later_tokens=10)
        other = s.scheduler.submit(items("b"))
        await s.finish_all()
        with pytest.raises(ValueError, match="broken"):
            await ticket.result()
        assert await other.result() == [result_of("b")]


async def test_later_rounds_count_for_admission_once() -> None:
    """A request is refused for all its work at the door, and never between its rounds."""
    async with stage(max_queue_tokens=100) as s:
        s.scheduler.submit(items("runs", tokens=100))
        await settle()
        s.scheduler.submit(items("waits", tokens=80))
        ticket = s.scheduler.submit(
            items("a", tokens=10), next_round=then(Round(items("b", tokens=90))), later_tokens=90
        )
        with pytest.raises(QueueFull):  # with its later tokens, more than 100 would be before this one
            s.scheduler.submit(items("x", tokens=60))
        await s.finish_all()
        assert await ticket.result() == [result_of("a"), result_of("b")]


async def test_a_request_in_rounds_has_the_place_of_one_that_comes_at_once() -> None:
    """Splitting its work must not let a long request overtake a shorter one, nor send it to the end."""
    async with stage(max_batch_tokens=10) as s:
        s.scheduler.submit(items("runs"))
        await settle()
        staged = s.scheduler.submit(items("a"), next_round=then(Round(items("b"))), later_tokens=10)
        s.scheduler.submit(items("one"))
        s.scheduler.submit(items("x", "y", "z"))
        await s.finish_all()
        assert [name for batch in s.device.payloads[1:] for name in batch] == ["one", "a", "b", "x", "y", "z"]
        assert len(await staged.result()) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.booleans(), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
async def test_no_round_is_lost_or_scored_twice_in_any_order_of_events(
    requests: list[tuple[list[int], bool, bool]], luck: random.Random
) -> None:
    """Each request has some rounds of one item of so many tokens; some hang up, and some batches fail."""
    async with stage(max_batch_tokens=50, slots=2) as s:
        tickets = []
        for number, (tokens, gives_up, _) in enumerate(requests):
            names = [f"{number}.{place}" for place in range(len(tokens))]
            rounds = [Item(count, "full", name) for count, name in zip(tokens, names, strict=True)]
            later = [Round([item], sum(tokens[place + 1 :])) for place, item in enumerate(rounds) if place]
            ticket = s.scheduler.submit([rounds[0]], next_round=then(*later), later_tokens=sum(tokens[1:]))
            tickets.append((ticket, names, gives_up))
        await settle()
        while s.device.running:
            chosen = luck.randrange(len(s.device.running))
            if requests[0][2] and luck.random() < 0.2:
                s.device.fail(ValueError("bad"), chosen)
            else:
                s.device.finish(chosen)
            for ticket, _, gives_up in tickets:
                if gives_up and luck.random() < 0.3:
                    ticket.cancel()
            await settle()
        assert s.scheduler.queued_tokens == 0
        for ticket, names, gives_up in tickets:
            try:
                found = await ticket.result()
            except asyncio.CancelledError:
                assert gives_up
                continue
            good = [result for result in found if not isinstance(result, Exception)]
            assert good == [result_of(name) for name in names if result_of(name) in good]
            assert len(found) == len(names)
        assert s.scheduler._queue.later_tokens == 0
