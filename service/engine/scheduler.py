"""Requests in, batches out, results back: what `serve.batch` would do, with fairness, deadlines and retries.

Everything here runs on one event loop. A free slot takes a batch from the fair queue as soon as anything
waits; it never waits for a batch to fill up. What arrives while every slot is busy goes into the next batch.

    scheduler = Scheduler(
        engine.run,
        max_batch_tokens=16384,
        max_queue_tokens=262144,
        max_request_tokens=512000,
        max_age_s=0.2,
        observer=metrics,
    )
    running = asyncio.create_task(scheduler.run())
    await scheduler.result(scheduler.submit(rows, deadline=time.monotonic() + 0.2))
    results = [row.result for row in rows]

The parts: `request` (rows and the claim on their results), `admission` (who is let in, and how much is asked
for), `queue` (who is next), `sizing` (how large a batch is), `runner` (the forward pass, and what happens if
it fails).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf

from headroom.service.engine.admission import Admission, Load
from headroom.service.engine.queue import FairQueue
from headroom.service.engine.request import Row, Submission
from headroom.service.engine.runner import BatchRunner, Forward, Observer
from headroom.service.engine.sizing import Sizing, TokenBudget, TokenRate
from headroom.service.errors import DeadlineExceeded, Draining


class Scheduler:
    """Shares one device between requests.

    Args:
        forward: runs one forward pass; returns a result or an exception for each row of the batch.
        max_batch_tokens, first_batch_tokens: the token budget of a batch, and the one to begin with, if the
            device has no memory for more. A single longer row goes alone.
        max_queue_tokens: limit on the queued tokens that would be served before a request.
        max_request_tokens: tokens of the largest request. At most `2 * max_queue_tokens + max_request_tokens`
            tokens wait, which bounds the memory; long requests alone fill at most
            `max_queue_tokens + max_request_tokens` of it.
        max_wait_s: limit on the time that the work ahead of a request takes, at the measured rate.
        max_age_s: requests that have waited longer get a sixteenth of the device (`FairQueue`).
        tokens_per_second: the device's rate, which counts until one is measured; None: until then no request
            is refused because of the time that it would take.
        slots: batches in flight at once: 1; or 2 if one can be prepared while another runs; or as many as run
            side by side.
        split_tokens: minimum tokens of a batch if what waits is shared among slots; None: it is not shared.
        clock: seconds that never go backwards; deadlines are read on it.
        host_clock: processor seconds of this process; None where the network itself takes them, on a CPU.

    load: what callers ask for, refused requests and later stages of a cascade included, without background
        work.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        max_batch_tokens: int,
        max_queue_tokens: int,
        max_request_tokens: int,
        max_age_s: float,
        observer: Observer,
        max_wait_s: float = inf,
        first_batch_tokens: int | None = None,
        tokens_per_second: float | None = None,
        slots: int = 1,
        split_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        host_clock: Callable[[], float] | None = None,
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._queue = FairQueue(max_age_s=max_age_s)
        self._background = FairQueue(max_age_s=inf)
        budget = TokenBudget(max_batch_tokens, first_batch_tokens)
        rate = TokenRate(tokens_per_second)
        self._rate = rate
        self.load = Load(rate, clock, host_clock)
        self._sizing = Sizing(budget, rate, slots=slots, split_tokens=split_tokens)
        self._admission = Admission(
            self._queue,
            rate,
            max_queue_tokens=max_queue_tokens,
            max_request_tokens=max_request_tokens,
            max_wait_s=max_wait_s,
        )
        self._runner = BatchRunner(forward, self._deliver, budget, rate, observer, clock)
        self._requests: set[Submission] = set()  # the open ones
        self._draining = False
        self._work = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def queued_tokens(self) -> int:
        """Return the tokens of the rows whose work has not begun, without background work."""
        return self._queue.tokens

    @property
    def oldest_age_s(self) -> float:
        """Return how long the oldest request with work not begun has waited; 0 if there is none."""
        return self._queue.oldest_age_s(self._clock())

    @property
    def tokens(self) -> int:
        """Tokens that wait or are being computed, without background work."""
        return self.queued_tokens + self._runner.in_flight_tokens

    @property
    def in_flight_rows(self) -> int:
        """Rows of the batches that are running."""
        return self._runner.in_flight_rows

    def submit(
        self,
        rows: Sequence[Row],
        *,
        deadline: float = inf,
        admitted: bool = False,
        background: bool = False,
    ) -> Submission:
        """Put at least one row into the queue; the caller then waits for `result`, or gives up with `cancel`.

        deadline: work that has not begun by then (on the clock) is dropped.
        admitted: whether the rows belong to a request that was let in before, so that it is not refused.
        background: whether the rows run only while nothing else waits or runs; nobody is refused for them.

        Raises QueueFull or Draining, both with the seconds after which to try again.
        """
        if self._draining:
            raise Draining
        now = self._clock()
        submission = Submission(rows, now, deadline, is_background=background)
        if not background:
            self.load.ask(submission.tokens)
            if not admitted:
                self._admission.check(
                    submission.tokens,
                    in_flight_tokens=self._runner.in_flight_tokens,
                    seconds_left=deadline - now,
                )
            self._sizing.admit(submission, now)
        queue = self._background if background else self._queue
        queue.push(submission, rows)
        self._requests.add(submission)
        self._work.set()
        return submission

    async def result(self, submission: Submission) -> None:
        """Wait until every row of a request has its result, or an exception in its place.

        Raises DeadlineExceeded if work would begin after the deadline, Draining if the scheduler was stopped
        first, CancelledError after `cancel`. If the waiter is cancelled, so is the request.
        """
        try:
            await submission.closed.wait()
        except asyncio.CancelledError:
            self.cancel(submission)
            raise
        if submission.error is not None:
            raise submission.error

    def cancel(self, submission: Submission) -> None:
        """Drop a request: work that has not begun never runs, and its room in the queue is free at once."""
        self._close(submission, asyncio.CancelledError())

    def is_in_time(self, tokens: int, deadline: float) -> bool:
        """Return whether this number of tokens would be done by the deadline if they were submitted now."""
        return self._admission.is_in_time(
            tokens,
            in_flight_tokens=self._runner.in_flight_tokens,
            seconds_left=deadline - self._clock(),
        )

    async def run(self) -> None:
        """Serve until drained. However this ends, nobody is left waiting: open requests get Draining."""
        try:
            async with asyncio.TaskGroup() as slots:
                for _ in range(self._slots):
                    slots.create_task(self._serve())
        finally:
            self._draining = True
            for submission in list(self._requests):
                self._close(submission, Draining())
            self._stopped.set()

    async def drain(self) -> None:
        """Refuse new work from now on; return when all admitted work is finished."""
        self._draining = True
        self._work.set()
        if self._requests or self._runner.in_flight_rows:
            await self._stopped.wait()

    async def _serve(self) -> None:
        """Work one slot: take a batch and run it, until drained."""
        while batch := await self._take():
            is_alone = not self._runner.busy_slots and not self._queue.tokens
            await self._runner.run(batch, alone=is_alone and not batch[0].submission.is_background)
            del batch  # so that its requests and their checkpoint can go while nothing waits

    async def _take(self) -> list[Row]:
        """Return the next batch as soon as anything waits, without the rows of late requests, which are
        dropped; empty once the scheduler is drained."""
        while True:
            now = self._clock()
            if self._queue.rows:
                size = self._sizing.next_batch(self._queue.tokens, self._runner.busy_slots, now)
                batch = self._queue.take(size.tokens, now, fill=size.fill)
            elif self._draining:
                return []
            elif self._background.rows and not self._runner.busy_slots:
                batch = self._background.take(self._sizing.slice_tokens(), now)
            else:
                self._work.clear()
                await self._work.wait()
                continue
            for submission in {row.submission for row in batch}:
                if submission.deadline <= now:  # the API's timeout may fire only after this batch is taken
                    self._close(submission, DeadlineExceeded())
                elif submission.started is None:
                    submission.started = now
                    submission.queue_s = now - submission.since
            open_rows = [row for row in batch if row.submission.is_open]
            if open_rows:
                return open_rows

    def _deliver(self, rows: Sequence[Row]) -> None:
        """Close the requests that have all of their results."""
        for row in rows:
            submission = row.submission
            submission.unanswered -= 1
            if not submission.unanswered:
                self._close(submission)

    def _close(self, submission: Submission, error: BaseException | None = None) -> None:
        """Take what waits of a request out of the queue, and wake its waiter with the results or an error."""
        if not submission.is_open:
            return
        submission.is_open = False
        self._requests.discard(submission)
        self._sizing.long_requests.discard(submission)
        if submission.waiting_rows:
            queue = self._background if submission.is_background else self._queue
            queue.remove(submission)
        if submission.started is not None:
            submission.inference_s = self._clock() - submission.started
        submission.error = error
        submission.closed.set()
