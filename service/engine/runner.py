"""Runs a batch on the device, and finds the rows at fault if it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from service.engine.request import Row, added_tokens
from service.engine.sizing import TokenBudget, TokenRate
from service.errors import DeviceFailed, OutOfMemory


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one forward pass: rows of one lane, `tokens` in all.

    alone: no other pass runs when it begins, and none is about to.
    """

    lane: Hashable
    rows: Sequence[Row]
    tokens: int
    alone: bool = False


class Observer(Protocol):
    """Hears what a scheduler does, as `Metrics` does. No method may raise."""

    def batch(self, *, pairs: int, tokens: int, budget: int) -> None:
        """A forward pass begins. If a batch is tried again in parts, each part is reported as well."""

    def out_of_memory(self) -> None:
        """A forward pass did not fit into the device's memory."""


class BatchRunner:
    """Runs batches on the device.

    forward: one forward pass; returns a result or an exception for each row of the batch. After OutOfMemory
        the budget is halved and the batch tried again in halves; after any other error it is tried again in
        halves until the rows that cause the error are alone. DeviceFailed is the result of every row.
    deliver: told which rows have their results.
    in_flight_tokens: of the rows that users wait for: background work is not counted.
    """

    def __init__(
        self,
        forward: Callable[[Batch], Awaitable[Sequence[Any]]],
        deliver: Callable[[Sequence[Row]], None],
        budget: TokenBudget,
        rate: TokenRate,
        observer: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self.busy_slots = 0
        self.in_flight_rows = 0
        self.in_flight_tokens = 0
        self._forward = forward
        self._deliver = deliver
        self._budget = budget
        self._rate = rate
        self._observer = observer
        self._clock = clock

    async def run(self, rows: list[Row], *, alone: bool) -> None:
        """Run a batch and deliver its rows with their results, in parts if the whole of it failed.

        Rows of a request that was given up are not tried again.
        """
        tokens = 0 if rows[0].submission.is_background else sum(added_tokens(rows))
        self.busy_slots += 1
        self.in_flight_rows += len(rows)
        self.in_flight_tokens += tokens
        try:
            parts = [rows]
            while parts:
                part = [row for row in parts.pop() if row.submission.is_open]
                if part and not await self._attempt(part, alone=alone):
                    middle = len(part) // 2
                    parts += part[middle:], part[:middle]
        finally:
            self.busy_slots -= 1
            self.in_flight_rows -= len(rows)
            self.in_flight_tokens -= tokens

    async def _attempt(self, rows: list[Row], *, alone: bool) -> bool:
        """Run one forward pass. Return False if the rows must be tried again in two halves."""
        batch = Batch(rows[0].lane, rows, sum(added_tokens(rows)), alone)
        budget = self._budget.tokens
        is_single = len(rows) == 1
        if batch.tokens > budget and not is_single:  # formed before the budget was halved
            return False
        # Background work comes in small batches, which say nothing about how fast users are served.
        is_measured = not rows[0].submission.is_background
        if self._observer is not None and is_measured:
            self._observer.batch(pairs=len(rows), tokens=batch.tokens, budget=budget)
        results: Sequence[Any]
        mark = self._rate.pass_changes(1, self._clock())
        try:
            results = await self._forward(batch)
            if len(results) != len(rows):
                raise RuntimeError(f"{len(results)} results for a batch of {len(rows)} rows")
            has_run = True
        except DeviceFailed as error:
            results, has_run = [DeviceFailed(error.kind) for _ in rows], False  # each is raised by itself
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # The engine cancelled the pass, and the slot goes on.
            results, has_run = [DeviceFailed("cancelled") for _ in rows], False
        except Exception as error:
            if isinstance(error, OutOfMemory):
                if self._observer is not None:
                    self._observer.out_of_memory()
                if not is_single:
                    self._budget.halve(budget, at_least=max(row.tokens for row in rows))
            if not is_single:
                return False
            results, has_run = [error], False
        finally:
            seconds = self._rate.pass_changes(-1, self._clock()) - mark
        if has_run and is_measured:
            self._budget.record_success(batch.tokens)
            self._rate.record(batch.tokens, seconds, budget=budget)
        for row, result in zip(rows, results, strict=True):
            row.result = result
            row.seconds = seconds / len(rows)
        self._deliver(rows)
        return True
