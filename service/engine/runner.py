"""Runs a batch on the device, and finds the items at fault if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.engine.queued import Item, TakenItem
from service.engine.rate import TokenRate
from service.engine.sizing import TokenBudget
from service.engine.ticket import Ticket
from service.errors import DeviceFailed, OutOfMemory

P = TypeVar("P")
R = TypeVar("R")
_NOT_FOLLOWED = nullcontext()


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """The input of one forward pass: items of one lane, `tokens` in all.

    alone: no other pass runs when it begins, and none is about to.
    """

    lane: Hashable
    items: tuple[Item[P], ...]
    tokens: int
    alone: bool = False


class Observer:
    """Hears what a scheduler does: override the methods of interest. No method may raise."""

    def on_batch(self, items: int, tokens: int, budget: int) -> None:
        """A forward pass begins. If a batch is tried again in parts, each part is reported as well."""

    def on_out_of_memory(self) -> None:
        """A forward pass did not fit into the device's memory."""


class BatchRunner(Generic[P, R]):
    """Runs batches on the device.

    forward: one forward pass; returns a result or an exception for each item of the batch. After OutOfMemory
        the budget is halved and the batch tried again in halves; after any other error it is tried again in
        halves until the items that cause the error are alone. DeviceFailed is the result of every item.
    has_trails: whether any request so far is traced.
    """

    def __init__(
        self,
        forward: Callable[[Batch[P]], Awaitable[Sequence[R | Exception]]],
        budget: TokenBudget,
        rate: TokenRate,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self.busy_slots = 0
        self.in_flight_items = 0
        self.in_flight_tokens = 0
        self.has_trails = False
        self._forward = forward
        self._budget = budget
        self._rate = rate
        self._observer = observer
        self._clock = clock

    async def run(
        self, batch: list[TakenItem[P, Ticket[R]]], *, alone: bool
    ) -> AsyncIterator[tuple[list[TakenItem[P, Ticket[R]]], Sequence[R | Exception]]]:
        """Run a batch and yield its items with their results, in parts if the whole of it failed.

        Items of a request that was given up are not tried again.
        """
        items, tokens = len(batch), _tokens(batch)
        self.busy_slots += 1
        self.in_flight_items += items
        self.in_flight_tokens += tokens
        try:
            parts = [batch]
            while parts:
                part = [entry for entry in parts.pop() if entry.owner.is_open]
                if not part:
                    continue
                results = await self._attempt(part, alone=alone)
                if results is not None:
                    # What these results lead to, such as a later round, must not wait for this part.
                    done_items, done_tokens = len(part), _tokens(part)
                    items, tokens = items - done_items, tokens - done_tokens
                    self.in_flight_items -= done_items
                    self.in_flight_tokens -= done_tokens
                    yield part, results
                else:
                    middle = len(part) // 2
                    parts += part[middle:], part[:middle]
        finally:
            self.busy_slots -= 1
            self.in_flight_items -= items
            self.in_flight_tokens -= tokens

    async def _attempt(
        self, part: list[TakenItem[P, Ticket[R]]], *, alone: bool
    ) -> Sequence[R | Exception] | None:
        """Return the results of one forward pass, or None if the items must be tried again in two halves."""
        items = [entry.item for entry in part]
        batch = Batch(items[0].lane, tuple(items), sum([item.tokens for item in items]), alone)
        budget = self._budget.tokens
        is_single = len(items) == 1
        if batch.tokens > budget and not is_single:  # formed before the budget was halved
            return None
        self._observer.on_batch(len(items), batch.tokens, budget)
        mark = self._rate.begin(self._clock())
        try:
            with self._followed(part, batch) if self.has_trails else _NOT_FOLLOWED:
                results = await self._forward(batch)
            if len(results) != len(items):
                raise RuntimeError(f"{len(results)} results for a batch of {len(items)} items")
        except DeviceFailed as error:
            return [error] * len(items)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            return [DeviceFailed("cancelled") for _ in items]  # the engine cancelled it, so the slot goes on
        except Exception as error:
            if isinstance(error, OutOfMemory):
                self._observer.on_out_of_memory()
            if is_single:
                return [error]
            if isinstance(error, OutOfMemory):
                self._budget.halve(budget, at_least=max(item.tokens for item in items))
            return None
        finally:
            seconds = self._rate.end(mark, self._clock())
        self._budget.record_success(batch.tokens)
        self._rate.record(batch.tokens, seconds, budget=budget)
        return results

    def _followed(
        self, part: list[TakenItem[P, Ticket[R]]], batch: Batch[P]
    ) -> AbstractContextManager[object]:
        """Return what follows a forward pass for the traced requests in it."""
        tickets = dict.fromkeys(entry.owner for entry in part)
        trails = [ticket.trail for ticket in tickets if ticket.trail is not None]
        if not trails:
            return _NOT_FOLLOWED
        return trails[0].in_batch(trails, items=len(part), tokens=batch.tokens)


def _tokens(entries: Sequence[TakenItem[P, Ticket[R]]]) -> int:
    return sum([entry.item.tokens for entry in entries])
