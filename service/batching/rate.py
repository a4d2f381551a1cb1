"""Measures how fast the device is while it works."""

from __future__ import annotations

LAST_BATCH_WEIGHT = 0.1
"""The weight of the last batch in the moving average."""
FULL_PART = 4
"""A batch of at least a quarter of the budget counts as well filled."""


class TokenRate:
    """Tokens per second of a busy device: an exponentially weighted average over its batches.

    Once a well-filled batch has run, a small one alone does not count. It takes longer per token, so it says
    little about how fast a queue empties. But if small batches together were faster than the rate, they raise
    it: while the rate is far too low, such as after the process was stopped for a minute, nothing else is let
    into the queue. Batches that run side by side share their time, so one of them alone may look too fast.
    """

    def __init__(self, guess: float | None) -> None:
        self.per_second = guess  # None: not known yet
        self._tokens = 0.0
        self._seconds = 0.0
        self._has_full = False
        self._ended = 0.0
        self._small_tokens = 0
        self._small_seconds = 0.0

    def record(self, tokens: int, began: float, ended: float, *, budget: int) -> None:
        """Count a batch. Time that it shared with the batch before it is not counted again."""
        seconds = max(0.0, ended - max(began, self._ended))
        self._ended = max(ended, self._ended)
        is_full = FULL_PART * tokens >= budget
        if self._has_full and not is_full:
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
