"""Requests in, batches out, results back: what `serve.batch` would do, with fairness, deadlines and retries.

Everything here runs on one event loop. A free slot takes the next batch from the fair queue as soon as there
is one and never waits for it to fill up; what arrives while every slot is busy is what makes batches large.

    scheduler = Scheduler(
        engine.run, max_batch_tokens=16384, max_queue_tokens=262144, max_request_tokens=512000, max_age_s=0.2
    )
    running = asyncio.create_task(scheduler.run())
    ticket = scheduler.submit(items, deadline=time.monotonic() + 0.2)
    results = await ticket.result()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Generic, Literal, Protocol, TypeVar

from service.batching.fair_queue import Entry, FairQueue, Flow, Item
from service.errors import DeadlineExceeded, DeviceFailed, Draining, OutOfMemory, QueueFull

__all__ = ["Batch", "Item", "Observer", "Scheduler", "Ticket"]

P = TypeVar("P")
R = TypeVar("R")

DRAINING_RETRY_S = 5.0  # by then another replica should have taken over
TOO_LATE = "The queue is too long for this request's deadline; try again later."
RATE_WEIGHT = 0.1  # of the last batch in the measured token rate
SLICE_S = 0.02
"""While short requests come in beside long ones, a batch takes no longer than this: a short one waits for the
batch that runs, and for its own."""
MIXED_S = 1.0  # how long after a short request the next one is expected
LEAST_SLICE = 8  # of the budget: less would be mostly overhead
CLEAN_BATCHES = 32  # this many well-filled batches without trouble, and a halved budget grows by an eighth


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """What one forward pass is asked to do: items of one lane, `tokens` in all.

    alone: as it begins, no other pass is under way, and none is about to be.
    """

    lane: Hashable
    items: tuple[Item[P], ...]
    tokens: int
    alone: bool = False


class Observer:
    """What a scheduler reports: override what is of interest. No method may raise."""

    def on_batch(self, items: int, tokens: int, budget: int) -> None:
        """A forward pass begins. A batch that is tried again in parts counts once more for each part."""

    def on_drop(self, reason: Literal["deadline", "disconnect"], items: int) -> None:
        """Items of one request were dropped before their work began."""


class Timer(Protocol):
    def cancel(self) -> object: ...


class Ticket(Generic[R]):
    """A request's claim on its results, for one waiter.

    `queue_s` is from admission to the start of its first batch, `inference_s` from there to its last result;
    each is 0 until it is known.
    """

    def __init__(self, items: int, now: float, withdraw: Callable[[Ticket[R]], None]) -> None:
        self._results: list[Any] = [None] * items
        self._left = items
        self._since = now
        self._began: float | None = None
        self._withdraw = withdraw
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flow: Flow[Any, Ticket[R]] | None = None  # None once nothing is owed any more
        self._timer: Timer | None = None
        self._is_long = False
        self.queue_s = 0.0
        self.inference_s = 0.0

    async def result(self) -> list[R | Exception]:
        """The results in the order of the items, with an exception in place of each that failed.

        Raises DeadlineExceeded as soon as the deadline passes with work not begun, Draining where the
        scheduler was stopped first, CancelledError after `cancel`. A waiter that is cancelled cancels the
        ticket.
        """
        try:
            await self._done
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._results

    def cancel(self) -> None:
        """Give up: what has not begun never runs, and its room in the queue is free at once."""
        self._withdraw(self)


class Scheduler(Generic[P, R]):
    """Shares one device between requests.

    Args:
        run: one forward pass: a result or an exception for each item of the batch. If it raises OutOfMemory,
            the budget is halved and the batch tried again in halves; DeviceFailed goes to every item; any
            other error is narrowed down, half by half, to the items that cause it.
        max_batch_tokens: the token budget of a batch. A single longer item goes alone.
        max_queue_tokens: admission limit on what would be served before a request; an empty queue takes any
            one request.
        max_request_tokens: what the largest request holds; submit none that is larger. It bounds the memory:
            no more waits than this and twice `max_queue_tokens`, of which long requests alone can fill no
            more than this and once `max_queue_tokens`.
        max_wait_s: admission limit on what a request would wait for, at the measured token rate. So is the
            request's own deadline: one that could not be met is refused at once.
        max_age_s: what has waited longer gets a part of the device whatever else comes (`FairQueue`).
        tokens_per_second: the rate to reckon with until a batch has run; None: no such limits until then.
        slots: batches in flight at once: 1, or 2 where one can be prepared while another runs, or as many as
            run side by side.
        split_tokens: slots run side by side, each at its part of the rate (the cores of a processor): what
            waits is spread over those that are idle, in batches of at least so many tokens. None: slots share
            the whole device.
        clock: seconds, never backwards; deadlines are read on it.
        call_later: how to be called after so many seconds of that clock; the event loop's, if not given.
    """

    def __init__(
        self,
        run: Callable[[Batch[P]], Awaitable[Sequence[R | Exception]]],
        *,
        max_batch_tokens: int,
        max_queue_tokens: int,
        max_request_tokens: int,
        max_age_s: float,
        max_wait_s: float = inf,
        tokens_per_second: float | None = None,
        slots: int = 1,
        split_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._run = run
        self._max_queue_tokens = max_queue_tokens
        self._max_waiting_tokens = 2 * max_queue_tokens + max_request_tokens
        self._max_wait_s = max_wait_s
        self._slots = slots
        self._split_tokens = split_tokens
        self._busy = 0  # slots that run a batch
        self._clock = clock
        self._call_later = call_later
        self._observer = observer or Observer()
        self._queue: FairQueue[P, Ticket[R]] = FairQueue(max_age_s=max_age_s)
        self._budget = _Budget(max_batch_tokens)
        self._rate = _TokenRate(tokens_per_second)
        self._tickets: set[Ticket[R]] = set()
        self._in_flight = 0
        self._in_flight_tokens = 0
        self._long = 0  # requests of more than a batch that are not done
        self._last_short = -inf
        self._draining = False
        self._work = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def queued_tokens(self) -> int:
        """Tokens of the items whose work has not begun."""
        return self._queue.tokens

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest request with work not begun has waited; 0 where there is none."""
        return self._queue.oldest_age_s(self._clock())

    @property
    def in_flight_items(self) -> int:
        """Items of the batches that are running."""
        return self._in_flight

    @property
    def budget_tokens(self) -> int:
        """The token budget of a batch as it is now; the device running out of memory lowers it."""
        return self._budget.tokens

    @property
    def tokens_per_second(self) -> float | None:
        """What the device does, as measured over its last well-filled batches; None while it is not known."""
        return self._rate.per_second

    def submit(self, items: Sequence[Item[P]], *, deadline: float | None = None) -> Ticket[R]:
        """Admit a request. Work that has not begun by `deadline` (on the clock) is dropped.

        Raises QueueFull or Draining, both with the seconds after which to try again.
        """
        if self._draining:
            raise Draining(DRAINING_RETRY_S)
        now = self._clock()
        ticket: Ticket[R] = Ticket(len(items), now, partial(self._drop, "disconnect"))
        if not items:
            ticket._done.set_result(None)
            return ticket
        tokens = sum(item.tokens for item in items)
        self._admit(tokens, now, deadline)
        if tokens <= self._slice():
            self._last_short = now
        ticket._is_long = tokens > self._budget.tokens
        self._long += ticket._is_long
        ticket._flow = self._queue.push(ticket, items, now=now, deadline=deadline)
        if deadline is not None:
            call_later = self._call_later or asyncio.get_running_loop().call_later
            ticket._timer = call_later(max(0.0, deadline - now), partial(self._expire, ticket))
        self._tickets.add(ticket)
        self._work.set()
        return ticket

    def _admit(self, tokens: int, now: float, deadline: float | None) -> None:
        """Raises QueueFull where a request of so many tokens finds no room, or not enough time."""
        queued = self._queue.tokens
        if not queued:
            return  # an empty queue takes any one request
        queued_ahead = self._queue.ahead_of(tokens)
        ahead = self._in_flight_tokens + queued_ahead
        limits: list[tuple[float, str | None]] = [
            (queued_ahead - self._max_queue_tokens, None),
            (queued + tokens - self._max_waiting_tokens, None),
        ]
        if (rate := self._rate.per_second) is not None:
            limits.append((ahead - self._max_wait_s * rate, None))
            if deadline is not None and deadline > now:
                limits.append((ahead + tokens - (deadline - now) * rate, TOO_LATE))
        for excess, message in limits:
            if excess > 0:
                raise QueueFull(self._rate.retry_after(min(excess, queued)), message=message)

    async def run(self) -> None:
        """Serve until drained. However it ends, nobody is left waiting: what is unfinished gets Draining."""
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
        """Refuse new work from now on; return when all that was admitted is finished."""
        self._draining = True
        self._work.set()
        if self._tickets or self._in_flight:
            await self._stopped.wait()

    async def _serve(self) -> None:
        """One slot: form a batch whenever there is work, run it, again."""
        while True:
            now = self._clock()
            budget, tokens = self._share(), self._slice()
            if tokens < budget and self._long and now - self._last_short < MIXED_S:
                entries, late = self._queue.take(tokens, now, fill=False)
            else:
                entries, late = self._queue.take(budget, now)
            for ticket, items in late:
                self._observer.on_drop("deadline", items)
                self._close(ticket, DeadlineExceeded())
            if entries:
                alone = not self._busy and not self._queue.tokens
                self._busy += 1
                try:
                    await self._execute(entries, alone=alone)
                finally:
                    self._busy -= 1
            elif self._draining:
                return
            else:
                self._work.clear()
                await self._work.wait()

    def _share(self) -> int:
        """Tokens of the next batch: the budget, or less where other slots are idle and would get nothing."""
        budget, waiting = self._budget.tokens, self._queue.tokens
        if self._split_tokens is None:
            return budget
        idle = self._slots - self._busy
        parts = max(1, min(idle, waiting // self._split_tokens))
        if not self._busy and 2 * parts <= self._slots:
            return budget  # alone, a pass has the cores that this leaves idle, too
        return min(budget, max(self._split_tokens, -(-waiting // parts)))

    def _slice(self) -> int:
        """Tokens of a batch that takes SLICE_S."""
        budget = self._budget.tokens
        if self._rate.per_second is None:
            return budget
        rate = self._rate.per_second / (1 if self._split_tokens is None else self._slots)
        return min(budget, max(budget // LEAST_SLICE, int(SLICE_S * rate)))

    async def _execute(self, entries: list[Entry[P, Ticket[R]]], *, alone: bool) -> None:
        """Run a batch, in parts where it must be, and hand out the results."""
        now = self._clock()
        for ticket, _, _ in entries:
            if ticket._began is None:
                ticket._began = now
                ticket.queue_s = now - ticket._since
        tokens = sum(entry.item.tokens for entry in entries)
        self._in_flight += len(entries)
        self._in_flight_tokens += tokens
        try:
            parts = [entries]
            while parts:
                part = [entry for entry in parts.pop() if entry.owner._flow]  # given up meanwhile: not again
                if not part:
                    continue
                results = await self._attempt([entry.item for entry in part], alone=alone)
                if results is not None:
                    self._deliver(part, results)
                else:
                    middle = len(part) // 2
                    parts += part[middle:], part[:middle]
        finally:
            self._in_flight -= len(entries)
            self._in_flight_tokens -= tokens

    async def _attempt(self, items: list[Item[P]], *, alone: bool) -> Sequence[R | Exception] | None:
        """The results of one forward pass, or None: try again in two halves."""
        batch = Batch(items[0].lane, tuple(items), sum(item.tokens for item in items), alone)
        budget = self._budget.tokens
        is_one = len(items) == 1
        if batch.tokens > budget and not is_one:  # formed before the budget was halved
            return None
        self._observer.on_batch(len(items), batch.tokens, budget)
        began = self._clock()
        try:
            results = await self._run(batch)
            if len(results) != len(items):
                raise RuntimeError(f"{len(results)} results for a batch of {len(items)} items")
        except DeviceFailed as error:
            return [error] * len(items)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            return [DeviceFailed("cancelled") for _ in items]  # the engine's doing, not ours: keep the slot
        except Exception as error:
            if is_one:
                return [error]
            if isinstance(error, OutOfMemory):
                self._budget.halve(budget, at_least=max(item.tokens for item in items))
            return None
        self._budget.went_well(batch.tokens)
        self._rate.record(batch.tokens, began, self._clock(), budget=budget)
        return results

    def _deliver(self, entries: list[Entry[P, Ticket[R]]], results: Sequence[R | Exception]) -> None:
        now = self._clock()
        for (ticket, position, _), result in zip(entries, results, strict=True):
            ticket._results[position] = result
            ticket._left -= 1
            if not ticket._left and ticket._began is not None:
                ticket.inference_s = now - ticket._began
                self._close(ticket)

    def _expire(self, ticket: Ticket[R]) -> None:
        """The deadline has passed. Work that has all begun may finish."""
        if ticket._flow and ticket._flow.items:
            self._drop("deadline", ticket)

    def _drop(self, reason: Literal["deadline", "disconnect"], ticket: Ticket[R]) -> None:
        if ticket._flow is None:
            return
        if items := self._queue.remove(ticket._flow):
            self._observer.on_drop(reason, items)
        self._close(ticket, DeadlineExceeded() if reason == "deadline" else asyncio.CancelledError())

    def _close(self, ticket: Ticket[R], error: BaseException | None = None) -> None:
        """Nothing is owed on this ticket any more: wake its waiter and forget it."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._long -= ticket._is_long
        if ticket._flow:
            self._queue.remove(ticket._flow)
        if ticket._timer:
            ticket._timer.cancel()
        ticket._flow = ticket._timer = None
        if ticket._done.done():  # the waiter was cancelled
            return
        if error is None:
            ticket._done.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            ticket._done.cancel()
        else:
            ticket._done.set_exception(error)
            ticket._done.exception()  # whether or not anybody waits, this is not an error of the loop's


class _Budget:
    """Tokens per batch: halved when the device runs out of memory, then grown back slowly to the limit."""

    def __init__(self, limit: int) -> None:
        self.tokens = limit
        self._limit = limit
        self._clean = 0

    def halve(self, failed: int, *, at_least: int) -> None:
        """A batch formed under a budget of `failed` was too large. Two such at once halve it once."""
        self.tokens = min(self.tokens, max(failed // 2, at_least))
        self._clean = 0

    def went_well(self, tokens: int) -> None:
        """A batch ran. A batch that had to leave something behind is at least half full."""
        if self.tokens < self._limit and 2 * tokens >= self.tokens:
            self._clean = (self._clean + 1) % CLEAN_BATCHES
            if not self._clean:
                self.tokens = min(self._limit, self.tokens + max(1, self._limit // 8))


class _TokenRate:
    """Tokens per second of a working device, exponentially weighted over batches.

    Once a batch was at least a quarter full, only such count: small ones take longer by the token, and say
    little about how fast a queue is worked off.
    """

    def __init__(self, guess: float | None) -> None:
        self.per_second = guess  # None: not known
        self._tokens = 0.0
        self._seconds = 0.0
        self._has_full = False
        self._ended = 0.0

    def record(self, tokens: int, began: float, ended: float, *, budget: int) -> None:
        """A batch ran; time that it shared with the one before it is not counted again."""
        seconds = max(0.0, ended - max(began, self._ended))
        self._ended = max(ended, self._ended)
        is_full = 4 * tokens >= budget
        if self._has_full and not is_full:
            return
        weight = RATE_WEIGHT if self._has_full or (not is_full and self._tokens) else 1.0
        self._has_full = is_full
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)
        if self._seconds > 0:
            self.per_second = self._tokens / self._seconds

    def retry_after(self, tokens: float) -> float:
        """How long so many tokens take, kept within what makes sense as a Retry-After: 1 to 60 s."""
        return min(60.0, max(1.0, tokens / self.per_second)) if self.per_second else 1.0
