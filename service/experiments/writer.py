"""Stores exposures, impressions and shadow results in a background thread, through a bounded buffer.

A request only appends to the buffer. A `kill -9` loses the `depth` records in the buffer: at most `capacity`,
and while the database takes writes only those of about the last `interval_s` seconds.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Sequence
from sys import getsizeof
from typing import Literal

from headroom.service.experiments.database import ROW_ERRORS, reason_of
from headroom.service.experiments.events import Exposure, Impression
from headroom.service.experiments.facts import Fact
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger(__name__)

BATCH = 500
"""Records per transaction. More would be cheaper, but SQLite has one writer at a time."""

BATCH_BYTES = 4 << 20
"""About how much memory the impressions of a transaction may take, which itself takes several times as much.
One impression may take more."""

MAX_IMPRESSION_BYTES = 64 << 20
"""About how much memory the buffer's impressions may take: each may have a thousand titles with ids."""

FIRST_RETRY_S = 0.1
LAST_STATEMENT_S = 1.0  # `close` grants this to a statement that is under way, whatever its own timeout
MAX_RETRY_S = 5.0


class Writer:
    """Takes records from requests and writes them in a background thread.

    capacity: records held while the database is slow or down. Further ones are refused and counted as lost.
    So are impressions once those held take about MAX_IMPRESSION_BYTES.
    interval_s: seconds between two writes of the buffer.
    metrics: counts the records written and lost. Once `close` has returned, they add up to all that were put.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        capacity: int = 20_000,
        interval_s: float = 0.2,
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._interval_s = interval_s
        self._metrics = metrics
        self._records: deque[Fact] = deque()
        self._bytes = 0  # of the impressions among them
        self._changed = threading.Condition()  # guards these two; never held during a transaction
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="experiments-writer", daemon=True)
        self.failure: str | None = None
        """Why records cannot be stored at present; None while they can."""

    def start(self) -> None:
        """Start the thread, unless it was started."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, record: Fact) -> bool:
        """Take a record, without waiting or raising. Return False if the buffer is full."""
        size = _size(record)
        with self._changed:
            has_room = self.depth < self._capacity and self._bytes + size <= MAX_IMPRESSION_BYTES
            is_accepted = has_room and not self._closing.is_set()
            if is_accepted:
                self._records.append(record)
                self._bytes += size
                self._metrics.set_gauge("exposure_buffer_rows", self.depth)
        if not is_accepted:
            self._count("lost", [record])
        return is_accepted

    @property
    def depth(self) -> int:
        """The number of records that are not stored yet."""
        return len(self._records)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the buffer is empty. Return False if it is not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._records, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Refuse new records, store the buffered ones within the timeout, and end.

        Return how many were not stored. They are counted as lost, although a statement that is still under
        way may store some of them later.
        """
        with self._changed:
            self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        with self._changed:
            self._given_up.set()
            unstored = list(self._records)
            self._records.clear()
            self._metrics.set_gauge("exposure_buffer_rows", 0)
        if self._thread.is_alive():  # wait until it has released its connection
            self._thread.join(LAST_STATEMENT_S)
        self._count("lost", unstored)
        return len(unstored)

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while not self._given_up.is_set():
            try:
                self._metrics.set_gauge("exposure_buffer_rows", self.depth)
                while batch := self._next_batch():
                    self._write(batch)
            except Exception as error:  # the database is down, most likely; the records stay
                if self.failure is None:
                    logger.warning("the experiments' database takes no writes: %s", reason_of(error))
                self.failure = reason_of(error)
                # A random wait keeps the replicas from coming back all at once.
                self._given_up.wait(retry_s * random.uniform(0.5, 1))
                retry_s = min(retry_s * 2, MAX_RETRY_S)
                continue
            if self.failure is not None:
                logger.warning("the experiments' database takes writes again")
            self.failure = None
            retry_s = FIRST_RETRY_S
            self._closing.wait(self._interval_s)
            if self._closing.is_set() and not self._records:
                return

    def _next_batch(self) -> list[Fact]:
        """Return the oldest records, which stay in the buffer until they are stored."""
        batch: list[Fact] = []
        batch_bytes = 0
        with self._changed:
            for record in self._records:
                batch_bytes += _size(record)
                if len(batch) == BATCH or (batch and batch_bytes > BATCH_BYTES):
                    break
                batch.append(record)
        return batch

    def _write(self, batch: Sequence[Fact]) -> None:
        """Store the oldest records, all or none; one by one if the database cannot hold one of them."""
        try:
            new = self._store.add(batch)
        except ROW_ERRORS as error:  # no request can bring such a row about
            if len(batch) == 1:
                logger.warning("a row cannot be stored, and is lost: %s: %r", reason_of(error), batch[0])
                self._release(batch, "lost")
                return
            for record in batch:
                self._write([record])
            return
        for (experiment, arm), units in new.items():
            self._metrics.count("exposures_total", experiment, arm, by=units)
        self._release(batch, "written")

    def _release(self, batch: Sequence[Fact], result: Literal["written", "lost"]) -> None:
        """Take the oldest records out of the buffer."""
        with self._changed:
            if self._given_up.is_set():
                return  # close() has counted them as lost
            for record in batch:
                self._records.popleft()
                self._bytes -= _size(record)
            self._changed.notify_all()
        self._count(result, batch)

    def _count(self, result: Literal["written", "lost"], records: Sequence[Fact]) -> None:
        exposures = sum(isinstance(record, Exposure) for record in records)
        impressions = sum(isinstance(record, Impression) for record in records)
        self._metrics.count(f"exposures_{result}_total", by=exposures)
        self._metrics.count(f"impressions_{result}_total", by=impressions)
        if result == "lost":
            self._metrics.count("shadow_results_lost_total", by=len(records) - exposures - impressions)


def _size(record: Fact) -> int:
    """Return about how many bytes of memory an impression takes; 0 for the other records, which are small."""
    if not isinstance(record, Impression):
        return 0
    return 40 * len(record.places) + sum(8 + getsizeof(name) for name in record.ids or ())
