"""Decides how large the next batch is. To change how batches are sized, change this file.

Three rules decide, each within the one before it:

- **Budget.** No batch holds more tokens than the budget (except a single row that is longer). The budget is
  halved when the device runs out of memory, and grows back slowly.
- **Splitting.** Slots that run side by side divide what waits, so that none of them idles.
- **Slicing.** While short requests come in beside long ones, a batch takes about 20 ms, and is not filled up
  with part of a long request.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from service.engine.rate import TokenRate
from service.engine.request import Submission

SLICE_S = 0.02
"""How long a batch takes while traffic is mixed: a short request waits for one such batch and for its own."""
MIXED_S = 1.0
"""How long traffic counts as mixed after the last short request."""
MIN_SLICE_PART = 8
"""A slice holds at least an eighth of the budget: a smaller batch would be mostly overhead."""
CLEAN_BATCHES = 32
"""A halved budget grows by an eighth of its limit after this many well-filled batches without trouble."""


class BatchSize(NamedTuple):
    """The limits of the next batch.

    fill: whether room that is left is filled with a part of a request that the batch does not finish.
    """

    tokens: int
    fill: bool


class TokenBudget:
    """The largest number of tokens in a batch. first: the number to begin with, if it is below the limit."""

    def __init__(self, limit: int, first: int | None = None) -> None:
        self.tokens = limit if first is None else min(first, limit)
        self._limit = limit
        self._clean_batches = 0

    def halve(self, failed_budget: int, *, at_least: int) -> None:
        """Halve the budget under which a batch ran out of memory; two such batches at once halve it once."""
        self.tokens = min(self.tokens, max(failed_budget // 2, at_least))
        self._clean_batches = 0

    def record_success(self, batch_tokens: int) -> None:
        """Count a batch that ran, if it was at least half full; enough of them let the budget grow."""
        if self.tokens < self._limit and 2 * batch_tokens >= self.tokens:
            self._clean_batches = (self._clean_batches + 1) % CLEAN_BATCHES
            if not self._clean_batches:
                self.tokens = min(self._limit, self.tokens + max(1, self._limit // 8))


class Sizing:
    """Decides how large the next batch is.

    slots: batches that may run at once.
    split_tokens: None: each slot uses the whole device. Else the slots run side by side, each at its part of
        the rate, as the cores of a processor do: what waits is spread over the idle ones, in batches of at
        least this many tokens.
    """

    def __init__(self, budget: TokenBudget, rate: TokenRate, *, slots: int, split_tokens: int | None) -> None:
        self._budget = budget
        self._rate = rate
        self._slots = slots
        self._split_tokens = split_tokens
        self._long_requests: set[Submission] = set()
        self._last_short = -inf

    def admit(self, submission: Submission, now: float) -> None:
        """Note a request that came in: it is short if it fits a slice, long if it needs several batches."""
        if submission.tokens <= self.slice_tokens():
            self._last_short = now
        if submission.tokens > self._budget.tokens:
            self._long_requests.add(submission)

    def forget(self, submission: Submission) -> None:
        """Forget a request that is answered or was dropped."""
        self._long_requests.discard(submission)

    def next_batch(self, waiting_tokens: int, busy_slots: int, now: float) -> BatchSize:
        """Return the size of the batch that a free slot takes now."""
        share_tokens, slice_tokens = self._share_tokens(waiting_tokens, busy_slots), self.slice_tokens()
        is_mixed = self._long_requests and now - self._last_short < MIXED_S
        if is_mixed and slice_tokens < share_tokens:
            return BatchSize(slice_tokens, fill=False)
        return BatchSize(share_tokens, fill=True)

    def _share_tokens(self, waiting_tokens: int, busy_slots: int) -> int:
        """Return this slot's share of what waits, or the budget if that is less.

        If splitting would leave at least half of the slots idle, an otherwise idle device takes one large
        batch: alone, a forward pass uses every core.
        """
        budget = self._budget.tokens
        if self._split_tokens is None:
            return budget
        idle_slots = self._slots - busy_slots
        parts = max(1, min(idle_slots, waiting_tokens // self._split_tokens))
        if not busy_slots and 2 * parts <= self._slots:
            return budget
        return min(budget, max(self._split_tokens, -(-waiting_tokens // parts)))

    def slice_tokens(self) -> int:
        """Return the tokens of a batch that takes SLICE_S, at most the budget."""
        budget = self._budget.tokens
        if self._rate.per_second is None:
            return budget
        slot_rate = self._rate.per_second / (1 if self._split_tokens is None else self._slots)
        return min(budget, max(budget // MIN_SLICE_PART, int(SLICE_S * slot_rate)))
