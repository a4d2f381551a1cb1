"""Requests in, batches out, results back: what `serve.batch` would do, with fairness, deadlines and retries.

Everything here runs on one event loop. A free slot takes a batch from the fair queue as soon as anything
waits; it never waits for a batch to fill up. What arrives while every slot is busy goes into the next batch.

    scheduler = Scheduler(
        engine.run, max_batch_tokens=16384, max_queue_tokens=262144, max_request_tokens=512000, max_age_s=0.2
    )
    running = asyncio.create_task(scheduler.run())
    ticket = scheduler.submit(items, deadline=time.monotonic() + 0.2)
    results = await ticket.result()

The parts: `admission` (who is let in), `fair_queue` (who is next), `sizing` (how large a batch is), `runner`
(the forward pass, and what happens if it fails), `ticket` (the caller's claim on the results).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Generic, TypeVar

from service.engine.admission import Admission
from service.engine.fair_queue import FairQueue
from service.engine.queued import Item, TakenItem
from service.engine.rate import TokenRate
from service.engine.runner import Batch, BatchRunner, Observer
from service.engine.sizing import Sizing, TokenBudget
from service.engine.ticket import NextRound, Round, Ticket
from service.engine.trail import Trail
from service.errors import DeadlineExceeded, Draining

__all__ = ["Batch", "Item", "Observer", "Round", "Scheduler", "Ticket"]

P = TypeVar("P")
R = TypeVar("R")

DRAINING_RETRY_S = 5.0
"""Retry-After of a replica that stops: by then another one should have taken over."""


class Scheduler(Generic[P, R]):
    """Shares one device between requests.

    Args:
        forward: runs one forward pass: a result or an exception for each item of the batch. After
            OutOfMemory the budget is halved and the batch tried again in halves; DeviceFailed goes to every
            item; after any other error, the batch is halved until the items that cause it are alone.
        max_batch_tokens: the token budget of a batch. A single longer item goes alone.
        first_batch_tokens: the budget to begin with, if the device has no memory for more; it grows as after
            a batch that ran out of memory.
        max_queue_tokens: admission limit on what would be served before a request; an empty queue takes any
            one request.
        max_request_tokens: tokens of the largest request; a larger one that comes raises it. At most
            `2 * max_queue_tokens + max_request_tokens` tokens wait, which bounds the memory; long requests
            alone fill at most `max_queue_tokens + max_request_tokens` of it.
        max_wait_s: admission limit on the time that a request would wait, at the measured token rate. A
            request that could not meet its own deadline is refused at once, too.
        max_age_s: requests that have waited longer get a quarter of the device (`FairQueue`).
        tokens_per_second: the device's rate, which counts until one is measured; None: until then no request
            is refused because of the time that it would take.
        slots: batches in flight at once: 1; or 2 if one can be prepared while another runs; or as many as run
            side by side.
        split_tokens: None: each slot uses the whole device. Else the slots run side by side, each at its part
            of the rate, as the cores of a processor do: what waits is spread over the idle ones, in batches
            of at least so many tokens.
        clock: seconds that never go backwards; deadlines are read on it.
    """

    def __init__(
        self,
        forward: Callable[[Batch[P]], Awaitable[Sequence[R | Exception]]],
        *,
        max_batch_tokens: int,
        max_queue_tokens: int,
        max_request_tokens: int,
        max_age_s: float,
        max_wait_s: float = inf,
        first_batch_tokens: int | None = None,
        tokens_per_second: float | None = None,
        slots: int = 1,
        split_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._observer = observer or Observer()
        self._queue: FairQueue[P, Ticket[R]] = FairQueue(max_age_s=max_age_s)
        self._budget = TokenBudget(max_batch_tokens, first_batch_tokens)
        self._rate = TokenRate(tokens_per_second)
        self._sizing = Sizing(self._budget, self._rate, slots=slots, split_tokens=split_tokens)
        self._admission = Admission(
            self._queue,
            self._rate,
            max_queue_tokens=max_queue_tokens,
            max_request_tokens=max_request_tokens,
            max_wait_s=max_wait_s,
        )
        self._runner: BatchRunner[P, R] = BatchRunner(
            forward, self._budget, self._rate, self._observer, clock
        )
        self._tickets: set[Ticket[R]] = set()  # the open ones
        self._draining = False
        self._work = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def queued_tokens(self) -> int:
        """Return the tokens of the items whose work has not begun."""
        return self._queue.tokens

    @property
    def oldest_age_s(self) -> float:
        """Return how long the oldest request with work not begun has waited; 0 if there is none."""
        return self._queue.oldest_age_s(self._clock())

    @property
    def tokens(self) -> int:
        """Tokens that wait or are being computed."""
        return self.queued_tokens + self._runner.in_flight_tokens

    @property
    def in_flight_items(self) -> int:
        """Items of the batches that are running."""
        return self._runner.in_flight_items

    def submit(
        self,
        items: Sequence[Item[P]],
        *,
        deadline: float | None = None,
        next_round: NextRound | None = None,
        later_tokens: int = 0,
        trail: Trail | None = None,
    ) -> Ticket[R]:
        """Admit a request. Work that has not begun by `deadline` (on the clock) is dropped.

        next_round: asked for more items once all so far have their results, again and again until there are
            none. The request is admitted once, for all rounds, and has its place in the fair order as if they
            came together. A round that would not be done by the deadline is left out: the ticket is then
            `is_cut_short`.
        later_tokens: the tokens, at most, of those later rounds.
        trail: told what becomes of the request.

        Raises QueueFull or Draining, both with the seconds after which to try again.
        """
        if self._draining:
            raise Draining(DRAINING_RETRY_S)
        now = self._clock()
        ticket: Ticket[R] = Ticket(len(items), now, self._cancel)
        if not items:
            ticket.close()
            return ticket
        tokens = sum([item.tokens for item in items])
        self._admission.check(
            tokens,
            later_tokens=later_tokens,
            in_flight_tokens=self._runner.in_flight_tokens,
            now=now,
            deadline=deadline,
        )
        self._sizing.admit(ticket, tokens, now)
        ticket.next_round = next_round
        if trail is not None:
            ticket.trail = trail
            self._runner.has_trails = True
        ticket.queued = self._queue.push(ticket, items, now=now, deadline=deadline, later_tokens=later_tokens)
        self._tickets.add(ticket)
        self._work.set()
        return ticket

    async def run(self) -> None:
        """Serve until drained. However this ends, nobody is left waiting: open tickets get Draining."""
        try:
            async with asyncio.TaskGroup() as slots:
                for _ in range(self._slots):
                    slots.create_task(self._serve())
        finally:
            self._draining = True
            for ticket in list(self._tickets):
                self._close(ticket, Draining(DRAINING_RETRY_S))
            self._stopped.set()

    async def drain(self) -> None:
        """Refuse new work from now on; return when all admitted work is finished."""
        self._draining = True
        self._work.set()
        if self._tickets or self._runner.in_flight_items:
            await self._stopped.wait()

    async def _serve(self) -> None:
        """Work one slot: take a batch, run it, deliver its results, until drained."""
        while batch := await self._take():
            async for part, results in self._runner.run(batch, alone=self._is_alone()):
                self._deliver(part, results)

    async def _take(self) -> list[TakenItem[P, Ticket[R]]]:
        """Return the next batch as soon as anything waits; empty once the scheduler is drained."""
        while True:
            now = self._clock()
            size = self._sizing.next_batch(self._queue.tokens, self._runner.busy_slots, now)
            batch, late_tickets = self._queue.take(size.tokens, now, fill=size.fill)
            for ticket in late_tickets:
                self._close(ticket, DeadlineExceeded())
            if batch or self._draining:
                for entry in batch:
                    if entry.owner.started is None:
                        entry.owner.start(now)
                return batch
            self._work.clear()
            await self._work.wait()

    def _is_alone(self) -> bool:
        """Whether no other batch runs, or could start at once."""
        return not self._runner.busy_slots and not self._queue.tokens

    def _deliver(self, batch: list[TakenItem[P, Ticket[R]]], results: Sequence[R | Exception]) -> None:
        """Hand each result to its ticket, and close the tickets that have all of theirs."""
        now = self._clock()
        for (ticket, position, _), result in zip(batch, results, strict=True):
            ticket.results[ticket.answered + position] = result
            ticket.unanswered -= 1
            if not ticket.unanswered and ticket.started is not None:
                ticket.end_round(now)
                self._finish_round(ticket, now)

    def _finish_round(self, ticket: Ticket[R], now: float) -> None:
        """Queue the next round of a ticket whose results are all there, or close it if there is none."""
        if ticket.next_round is None or ticket.queued is None or not ticket.is_open:
            self._close(ticket)
            return
        try:
            items, later_tokens = ticket.next_round(ticket.results)
        except Exception as error:  # a defect of the caller fails its own request, and no slot
            self._close(ticket, error)
            return
        tokens = sum(item.tokens for item in items)
        if items and not self._admission.can_meet(
            ticket.queued, tokens, in_flight_tokens=self._runner.in_flight_tokens, now=now
        ):
            ticket.is_cut_short = True
            items = ()
        if not items:
            self._close(ticket)
            return
        ticket.begin_round(len(items), now)
        self._queue.extend(ticket.queued, items, later_tokens)
        self._work.set()

    def _cancel(self, ticket: Ticket[R]) -> None:
        """Drop a request that nobody waits for any more."""
        if ticket.is_open:
            self._close(ticket, asyncio.CancelledError())

    def _close(self, ticket: Ticket[R], error: BaseException | None = None) -> None:
        """Take what waits of a request out of the queue, and wake its waiter with the results or an error."""
        self._tickets.discard(ticket)
        if ticket.trail is not None and ticket.is_open and ticket.started is None:
            ticket.trail.leaves_queue(ticket.submitted, self._clock())
        self._sizing.forget(ticket)
        if ticket.queued is not None:
            self._queue.remove(ticket.queued)
            ticket.queued = None  # it knows the ticket: a circle stays until Python looks for circles
        ticket.close(error)
