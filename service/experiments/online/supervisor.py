"""Keeps a loop alive through errors that nobody foresaw."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("headroom.experiments")

ERROR_SECONDS = 600.0
"""An error of one kind that comes every second is logged once in this time."""


class Supervisor:
    """Logs the errors of a loop's rounds, so that the loop goes on.

    Args:
        monotonic: returns seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_log: dict[tuple[str, type[Exception]], float] = {}

    @contextmanager
    def supervise(self, task: str) -> Iterator[None]:
        """Log an error of the block instead of raising it."""
        try:
            yield
        except Exception as error:
            kind, now = (task, type(error)), self._monotonic()
            if now >= self._next_log.get(kind, now):
                self._next_log[kind] = now + ERROR_SECONDS
                logger.exception("%s cannot be kept up; tried again every second: %s", task, error)
