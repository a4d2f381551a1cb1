"""Measures how fast the device is while it works."""

from __future__ import annotations

LAST_BATCH_WEIGHT = 0.1
"""The weight of the last batch in the moving average."""
FULL_PART = 4
"""A batch of at least a quarter of the budget counts as well filled."""


class TokenRate:
    """Tokens per second of a busy device: an exponentially weighted average over its batches.

    Passes that run at the same time share that time equally: each of n takes 1/n of it. So the parts of all
    passes add up to the time that the device was busy, whichever of them ends first.

    Once a well-filled batch has run, or if there was a guess, a small one alone does not count. It takes
    longer per token, so it says little about how fast a queue empties. But if small batches together were
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
        self._running = 0
        self._now = 0.0
        self._share_s = 0.0  # the part of a pass that had run from the first one on

    def begin(self, now: float) -> float:
        """Note that a pass begins. Return the mark that `end` wants."""
        self._advance(now)
        self._running += 1
        return self._share_s

    def end(self, mark: float, now: float) -> float:
        """Note that a pass ends, done or failed. Return its part of the device's time, in seconds."""
        self._advance(now)
        self._running -= 1
        return self._share_s - mark

    def record(self, tokens: int, seconds: float, *, budget: int) -> None:
        """Count a batch that is done. seconds: what `end` returned."""
        is_full = FULL_PART * tokens >= budget
        if not is_full and (self._has_full or self._has_guess):
            self._small_tokens += tokens
            self._small_seconds += seconds
            if FULL_PART * self._small_tokens < budget:
                return
            tokens, seconds = self._small_tokens, self._small_seconds
            self._small_tokens, self._small_seconds = 0, 0.0
            if self.per_second is not None and tokens <= seconds * self.per_second:
                return
            is_full = True
        weight = LAST_BATCH_WEIGHT if self._has_full or (not is_full and self._tokens) else 1.0
        self._has_full = is_full
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)
        if self._seconds > 0:
            self.per_second = self._tokens / self._seconds

    def retry_after(self, tokens: float) -> float:
        """Return the seconds that so many tokens take, kept between 1 and 60 as a Retry-After should be."""
        return min(60.0, max(1.0, tokens / self.per_second)) if self.per_second else 1.0

    def _advance(self, now: float) -> None:
        if self._running:
            self._share_s += (now - self._now) / self._running
        self._now = now
