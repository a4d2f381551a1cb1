"""Exposures and shadow results on their way to the database: a bounded buffer that one thread empties.

A request only appends to the buffer. What a `kill -9` loses is what the buffer holds, `depth`: at most
`capacity` rows, and while the database takes writes those of about the last `interval_s` seconds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

from service.errors import DatabaseUnavailable
from service.experiments.definition.events import Exposure, ShadowResult
from service.experiments.storage.connection import reason_of
from service.experiments.storage.store import Store

logger = logging.getLogger(__name__)

BATCH = 500
"""Rows of one transaction: long enough to be cheap, short enough for SQLite's one writer at a time."""

FIRST_RETRY_S = 0.1
LAST_STATEMENT_S = 1.0  # what `close` grants a statement that is under way, whatever its timeout
LONGEST_RETRY_S = 5.0
SWEEP_S = 3600.0
"""How often rows past their retention are looked for."""

Kind = Literal["exposure", "shadow"]
Row = Exposure | ShadowResult
Report = Callable[[Kind, int], None]


def _ignore(kind: Kind, rows: int) -> None:
    pass


class Writer:
    """Takes rows from requests and stores them behind their back.

    capacity: rows held while the database is slow or down; further ones are refused and counted as lost.
    interval_s: how often the buffer is emptied.
    retention_days: rows older than this are deleted, a few at a time between writes; none: kept for ever.
    on_written, on_lost: told the kind of row and how many, from the writer's thread, or from the caller of
        `put` for rows that it refuses. Written and lost add up to what was put, once `close` has returned.
    """

    def __init__(
        self,
        store: Store,
        *,
        capacity: int = 20_000,
        interval_s: float = 0.2,
        retention_days: float | None = None,
        on_written: Report = _ignore,
        on_lost: Report = _ignore,
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._interval_s = interval_s
        self._retention_s = None if retention_days is None else retention_days * 86_400
        self._on_written = on_written
        self._on_lost = on_lost
        # Only callers of put() take this lock, never the writer's thread: a request waits for no transaction.
        self._admission = threading.Lock()
        self._rows: deque[Row] = deque()
        self._refused = 0
        self._dropped = 0
        self._size = BATCH
        self._next_sweep = time.monotonic()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._settled = threading.Condition()  # held while the buffer's rows become written or lost
        self._thread = threading.Thread(target=self._run, name="experiments-writer", daemon=True)
        self.failure: str | None = None
        """Why rows cannot be stored at present; None while they can."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, row: Row) -> bool:
        """Takes a row to store. Never waits, never raises; False where the buffer is full: it is lost."""
        with self._admission:
            accepted = len(self._rows) < self._capacity and not self._closing.is_set()
            if accepted:
                self._rows.append(row)
            else:
                self._refused += 1
        if not accepted:
            self._on_lost(_kind(row), 1)
        return accepted

    @property
    def depth(self) -> int:
        """Rows that are not safe yet."""
        return len(self._rows)

    @property
    def lost(self) -> int:
        """Rows that were put and will not be stored."""
        return self._refused + self._dropped

    def flush(self, timeout_s: float) -> bool:
        """Waits until the buffer is empty; False where it is not in time."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._rows, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Takes no more rows, stores those it has within the timeout, and ends.

        Returns how many were left. They are counted as lost, although a statement that is still under way may
        yet store some.
        """
        deadline = time.monotonic() + timeout_s
        with self._admission:
            self._closing.set()
        if self._thread.is_alive():
            self.flush(timeout_s)
        with self._settled:
            self._given_up.set()
            left = list(self._rows)
            self._rows.clear()
        if self._thread.is_alive():  # it lets go of its connection
            self._thread.join(max(LAST_STATEMENT_S, deadline - time.monotonic()))
        self._drop(left)
        return len(left)

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while not self._given_up.is_set():
            try:
                self._empty()
                self._sweep()
            except (
                Exception
            ) as error:  # a database that is down, or whatever keeps old rows from being deleted
                if self.failure is None:
                    logger.warning("the experiments' database takes no writes: %s", reason_of(error))
                self.failure = reason_of(error)
                self._given_up.wait(
                    retry_s * random.uniform(0.5, 1)
                )  # replicas must not all come back at once
                retry_s = min(retry_s * 2, LONGEST_RETRY_S)
                continue
            if self.failure is not None:
                logger.warning("the experiments' database takes writes again")
            self.failure, retry_s = None, FIRST_RETRY_S
            self._closing.wait(self._interval_s)
            if self._closing.is_set() and not self._rows:
                return

    def _empty(self) -> None:
        """Stores what is in the buffer, oldest first. A row leaves it only when it is safe."""
        while self._rows and not self._given_up.is_set():
            rows = [self._rows[i] for i in range(min(self._size, len(self._rows)))]
            try:
                self._store.add_exposures([row for row in rows if isinstance(row, Exposure)])
                self._store.add_shadow([row for row in rows if isinstance(row, ShadowResult)])
            except DatabaseUnavailable:
                raise
            except (
                Exception
            ) as error:  # a row that the database cannot hold: find it, so that the others go in
                if len(rows) > 1:
                    self._size = len(rows) // 2
                    continue
                logger.warning("a row for the experiments' database is dropped: %s", reason_of(error))
                self._settle(rows, self._drop)
            else:
                self._settle(rows, self._written)
            self._size = min(self._size * 2, BATCH)

    def _settle(self, rows: list[Row], count: Callable[[list[Row]], None]) -> None:
        with self._settled:
            if self._given_up.is_set():
                return  # close() has counted them
            for _ in rows:
                self._rows.popleft()
            self._settled.notify_all()
        count(rows)

    def _written(self, rows: list[Row]) -> None:
        for kind, number in Counter(map(_kind, rows)).items():
            self._on_written(kind, number)

    def _drop(self, rows: list[Row]) -> None:
        self._dropped += len(rows)
        for kind, number in Counter(map(_kind, rows)).items():
            self._on_lost(kind, number)

    def _sweep(self) -> None:
        """One chunk of what is past its retention, when it is time; the next one in the next round."""
        if self._retention_s is None or time.monotonic() < self._next_sweep or self._closing.is_set():
            return
        if not self._store.delete_older_than(time.time() - self._retention_s):
            self._next_sweep = time.monotonic() + SWEEP_S


def _kind(row: Row) -> Kind:
    return "exposure" if isinstance(row, Exposure) else "shadow"
