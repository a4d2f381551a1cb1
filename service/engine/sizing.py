"""Decides how large the next batch is. To change how batches are sized, change this file.

Three rules decide, each within the one before it:

- **Budget.** No batch holds more tokens than the budget (except a single row that is longer). The budget is
  halved when the device runs out of memory, and grows back slowly.
- **Splitting.** Slots that run side by side divide what waits, so that none of them idles.
- **Slicing.** While short requests come in beside long ones, a batch takes about 20 ms, and is not filled up
  with part of a long request.
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple

from headroom.service.engine.request import Submission

SLICE_S = 0.02
"""How long a batch takes while traffic is mixed: a short request waits for one such batch and for its own."""
MIXED_S = 1.0
"""How long traffic counts as mixed after the last short request."""
MIN_SLICE_PART = 8
"""A slice holds at least an eighth of the budget: a smaller batch would be mostly overhead."""
CLEAN_BATCHES = 32
"""A halved budget grows by an eighth of its limit after this many well-filled batches without trouble."""
LAST_BATCH_WEIGHT = 0.1
"""The weight of the last batch in the moving average."""
FULL_PART = 4
"""A batch of at least a quarter of the budget counts as well filled."""


class BatchSize(NamedTuple):
    """The limits of the next batch.

    fill: whether room that is left is filled with a part of a request that the batch does not finish.
    """

    tokens: int
    fill: bool


class TokenBudget:
    """The largest number of tokens in a batch. first: the number to begin with, if lower; None: the limit."""

    def __init__(self, limit: int, first: int | None) -> None:
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


class TokenRate:
    """Tokens per second of a busy device: an exponentially weighted average over its batches.

    Passes that run at the same time share that time equally: each of n takes 1/n of it. So the parts of all
    passes add up to the time that the device was busy, whichever of them ends first.

    Once the rate is known from a guess or a well-filled batch, a single small batch does not count: it takes
    longer per token and says little about how fast a queue empties. But if small batches together were
    faster than the rate, they raise it: while the rate is far too low, such as after the process was stopped
    for a minute, nothing else is let into the queue.

    guess: the rate until it is measured; None: there is none.
    """

    def __init__(self, guess: float | None) -> None:
        self.per_second = guess  # None: not known yet
        self._tokens = 0.0
        self._seconds = 0.0
        self._has_full = False
        self._has_guess = guess is not None
        self._small_tokens = 0
        self._small_seconds = 0.0
        self._passes = 0
        self._clock_at = 0.0
        self._clock_s = 0.0

    def device_clock(self, now: float, *, passes: int) -> float:
        """Return a clock of device time; a pass's cost is its difference between the end and the start.

        While n passes run, it advances by 1/n of a second in each second.

        passes: 1 if a pass starts now, -1 if one ends, done or failed.
        """
        if self._passes:
            self._clock_s += (now - self._clock_at) / self._passes
        self._clock_at = now
        self._passes += passes
        return self._clock_s

    def record(self, tokens: int, seconds: float, *, budget: int) -> None:
        """Count a batch that is done. seconds: its part of the device's time."""
        if FULL_PART * tokens >= budget:
            self._record_full(tokens, seconds)
        elif not (self._has_full or self._has_guess):
            self._average(tokens, seconds, weight=LAST_BATCH_WEIGHT if self._tokens else 1.0)
        else:
            self._small_tokens += tokens
            self._small_seconds += seconds
            if FULL_PART * self._small_tokens >= budget:
                if self.per_second is None or self._small_tokens > self._small_seconds * self.per_second:
                    self._record_full(self._small_tokens, self._small_seconds)
                self._small_tokens = 0
                self._small_seconds = 0.0

    def _record_full(self, tokens: int, seconds: float) -> None:
        self._average(tokens, seconds, weight=LAST_BATCH_WEIGHT if self._has_full else 1.0)
        self._has_full = True

    def _average(self, tokens: int, seconds: float, *, weight: float) -> None:
        """Take a batch into the averages with this weight, and set the rate."""
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)
        if self._seconds > 0:
            self.per_second = self._tokens / self._seconds

    def retry_after(self, tokens: float) -> float:
        """Return the seconds that this number of tokens takes, kept between 1 and 60 for a Retry-After."""
        if not self.per_second:
            return 1.0
        return min(60.0, max(1.0, tokens / self.per_second))


@dataclass
class Sizing:
    """Decides how large the next batch is.

    slots: batches that may run at once.
    split_tokens: None: each slot uses the whole device. Else the slots run side by side, each at its part of
        the rate, as the cores of a processor do: what waits is spread over the idle ones, in batches of at
        least this many tokens.
    long_requests: the open ones that need several batches. last_short: when the last short request came in.
    """

    budget: TokenBudget
    rate: TokenRate
    slots: int
    split_tokens: int | None
    long_requests: set[Submission] = field(default_factory=set, init=False)
    last_short: float = field(default=-inf, init=False)

    def admit(self, submission: Submission, now: float) -> None:
        """Note a request that came in: it is short if it fits a slice, long if it needs several batches."""
        if submission.tokens <= self.slice_tokens():
            self.last_short = now
        if submission.tokens > self.budget.tokens:
            self.long_requests.add(submission)

    def next_batch(self, waiting_tokens: int, busy_slots: int, now: float) -> BatchSize:
        """Return the size of the batch that a free slot takes now.

        That is its share of what waits. If splitting would leave at least half of the slots idle, an
        otherwise idle device takes one large batch: alone, a forward pass uses every core.
        """
        tokens = self.budget.tokens
        if self.split_tokens is not None:
            parts = max(1, min(self.slots - busy_slots, waiting_tokens // self.split_tokens))
            if busy_slots or 2 * parts > self.slots:
                share = ceil(waiting_tokens / parts)
                tokens = min(tokens, max(self.split_tokens, share))
        is_mixed = self.long_requests and now - self.last_short < MIXED_S
        slice_tokens = self.slice_tokens()
        if is_mixed and slice_tokens < tokens:
            return BatchSize(slice_tokens, fill=False)
        return BatchSize(tokens, fill=True)

    def slice_tokens(self) -> int:
        """Return the tokens of a batch that takes SLICE_S, at most the budget."""
        budget = self.budget.tokens
        if self.rate.per_second is None:
            return budget
        slots_sharing = 1 if self.split_tokens is None else self.slots
        slot_rate = self.rate.per_second / slots_sharing
        return min(budget, max(budget // MIN_SLICE_PART, int(SLICE_S * slot_rate)))
