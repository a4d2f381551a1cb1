"""How a request that is traced is followed through queue and batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Trail(Protocol):
    """Hears what becomes of a request that is traced. Times are on the scheduler's clock. It never raises."""

    def begins(self, submitted: float, now: float) -> None:
        """The first batch of a round begins; the round waited since `submitted`."""

    def ends(self, now: float) -> None:
        """The results of the round are all there."""

    def leaves_queue(self, submitted: float, now: float) -> None:
        """The request was given up before the first batch of a round began."""

    def in_batch(self, trails: Sequence[Trail], *, items: int, tokens: int) -> AbstractContextManager[object]:
        """Follow a forward pass while the context lasts. trails: of all traced requests in it, this first."""
