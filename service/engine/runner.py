"""Runs a batch on the device, and finds the rows at fault if it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headroom.service.engine.request import Row, added_tokens
from headroom.service.engine.sizing import TokenBudget, TokenRate
from headroom.service.errors import DeviceFailed, OutOfMemory

GPU_SLOTS = 2
"""Batches under way at once on a GPU: while one runs, the next is packed and sent over."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one forward pass: rows of one lane, `tokens` in all.

    alone: no other pass runs when it begins, and none is about to.
    """

    lane: Hashable
    rows: Sequence[Row]
    tokens: int
    alone: bool = False


Forward = Callable[[Batch], Awaitable[Sequence[Any]]]
"""One forward pass; returns a result or an exception for each row of the batch."""


class Observer(Protocol):
    """Is called when a scheduler does something, as `Metrics` is. No method may raise."""

    def batch(self, *, pairs: int, tokens: int, budget: int) -> None:
        """A forward pass begins. If a batch is tried again in parts, each part is reported as well."""

    def out_of_memory(self) -> None:
        """A forward pass did not fit into the device's memory."""


@dataclass
class BatchRunner:
    """Runs batches on the device.

    After OutOfMemory the budget is halved and the batch tried again in halves; after any other error it is
    tried again in halves until the rows that cause the error are alone. DeviceFailed is every row's result.

    deliver: called with the rows that have their results.
    in_flight_tokens: of the rows that users wait for: background work is not counted.
    """

    forward: Forward
    deliver: Callable[[Sequence[Row]], None]
    budget: TokenBudget
    rate: TokenRate
    observer: Observer
    clock: Callable[[], float]
    busy_slots: int = 0
    in_flight_rows: int = 0
    in_flight_tokens: int = 0

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
                    parts += [part[middle:], part[:middle]]
        finally:
            self.busy_slots -= 1
            self.in_flight_rows -= len(rows)
            self.in_flight_tokens -= tokens

    async def _attempt(self, rows: list[Row], *, alone: bool) -> bool:
        """Run one forward pass. Return False if the rows must be tried again in two halves."""
        batch = Batch(rows[0].lane, rows, sum(added_tokens(rows)), alone)
        budget = self.budget.tokens
        is_single = len(rows) == 1
        if batch.tokens > budget and not is_single:  # formed before the budget was halved
            return False
        # Background work comes in small batches, which say nothing about how fast users are served.
        is_measured = not rows[0].submission.is_background
        if is_measured:
            self.observer.batch(pairs=len(rows), tokens=batch.tokens, budget=budget)
        results: Sequence[Any]
        started = self.rate.device_clock(self.clock(), passes=1)
        try:
            results = await self._results(batch)
        except DeviceFailed as error:
            # One exception per row: its traceback grows whenever it is raised.
            results = [DeviceFailed(error.kind) for _ in rows]
            is_measured = False
        except Exception as error:
            if isinstance(error, OutOfMemory):
                self._note_out_of_memory(rows, budget)
            if not is_single:
                return False
            results = [error]
            is_measured = False
        finally:
            seconds = self.rate.device_clock(self.clock(), passes=-1) - started
        if is_measured:
            self.budget.record_success(batch.tokens)
            self.rate.record(batch.tokens, seconds, budget=budget)
        for row, result in zip(rows, results, strict=True):
            row.result = result
            row.seconds = seconds / len(rows)
        self.deliver(rows)
        return True

    async def _results(self, batch: Batch) -> Sequence[Any]:
        """Return one result per row. Raises what the pass raises; DeviceFailed if the engine cancelled it."""
        try:
            results = await self.forward(batch)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise DeviceFailed("cancelled") from None
        if len(results) != len(batch.rows):
            raise RuntimeError(f"{len(results)} results for a batch of {len(batch.rows)} rows")
        return results

    def _note_out_of_memory(self, rows: Sequence[Row], budget: int) -> None:
        """Halve the budget under which these rows did not fit, unless it was one row alone."""
        self.observer.out_of_memory()
        if len(rows) > 1:
            self.budget.halve(budget, at_least=max(row.tokens for row in rows))
