"""Stores exposures, impressions and shadow results in a background thread, through a bounded buffer.

A request only appends to the buffer. A `kill -9` loses the `depth` records in the buffer: at most `capacity`,
and while the database takes writes only those of about the last `interval_s` seconds.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from sys import getsizeof
from typing import Literal

from headroom.service.experiments.database import ROW_ERRORS, reason_of
from headroom.service.experiments.events import Exposure, Impression, ShadowResult
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

Record = Exposure | Impression | ShadowResult


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
        # Never taken by the writer's thread, so that no request waits for a transaction.
        self._admission = threading.Lock()
        self._records: deque[Record] = deque()
        self._bytes_taken = 0  # sizes of all impressions that entered the buffer; guarded by `_admission`
        self._bytes_released = 0  # sizes of those that have left it; guarded by `_settled`
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._settled = threading.Condition()  # held while records leave the buffer
        self._thread = threading.Thread(target=self._run, name="experiments-writer", daemon=True)
        self.failure: str | None = None
        """Why records cannot be stored at present; None while they can."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, record: Record) -> bool:
        """Take a record, without waiting or raising. Return False if the buffer is full."""
        with self._admission:
            size = _size(record)
            held_bytes = self._bytes_taken - self._bytes_released
            has_room = len(self._records) < self._capacity and held_bytes + size <= MAX_IMPRESSION_BYTES
            accepted = has_room and not self._closing.is_set()
            if accepted:
                self._records.append(record)
                self._bytes_taken += size
                self._metrics.set_gauge("exposure_buffer_rows", self.depth)
        if not accepted:
            self._count("lost", [record])
        return accepted

    @property
    def depth(self) -> int:
        """The number of records that are not stored yet."""
        return len(self._records)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the buffer is empty. Return False if it is not in time."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._records, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Refuse new records, store the buffered ones within the timeout, and end.

        Return how many were not stored. They are counted as lost, although a statement that is still under
        way may store some of them later.
        """
        deadline = time.monotonic() + timeout_s
        with self._admission:
            self._closing.set()
        if self._thread.is_alive():
            self.flush(timeout_s)
        with self._settled:
            self._given_up.set()
            unstored = list(self._records)
            self._records.clear()
            self._metrics.set_gauge("exposure_buffer_rows", 0)
        if self._thread.is_alive():  # wait until it has released its connection
            self._thread.join(max(LAST_STATEMENT_S, deadline - time.monotonic()))
        self._count("lost", unstored)
        return len(unstored)

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while not self._given_up.is_set():
            try:
                self._metrics.set_gauge("exposure_buffer_rows", self.depth)
                self._empty()
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

    def _empty(self) -> None:
        """Store the buffered records, oldest first. A record leaves the buffer only once it is stored."""
        while batch := self._next_batch():
            try:
                self._add(batch)
            except ROW_ERRORS:  # no request can bring such a row about
                self._add_one_by_one(batch)
            else:
                self._settle(batch, "written")

    def _add(self, records: Sequence[Record]) -> None:
        """Store records. Shadow results come last: they alone would be stored twice by another attempt."""
        self._add_exposures([record for record in records if isinstance(record, Exposure)])
        self._store.add_impressions([record for record in records if isinstance(record, Impression)])
        self._store.add_shadow([record for record in records if isinstance(record, ShadowResult)])

    def _add_one_by_one(self, records: Sequence[Record]) -> None:
        """Store records of which one cannot be stored, so that no other is lost with it."""
        for record in records:
            try:
                self._add([record])
            except ROW_ERRORS as error:
                logger.warning("a row cannot be stored, and is lost: %s: %r", reason_of(error), record)
                self._settle([record], "lost")
            else:
                self._settle([record], "written")

    def _add_exposures(self, exposures: Sequence[Exposure]) -> None:
        """Store exposures, and count the new units at once: another attempt would not find them new."""
        for (experiment, arm), units in self._store.add_exposures(exposures).items():
            self._metrics.count("exposures_total", experiment, arm, by=units)

    def _next_batch(self) -> list[Record]:
        """Return the oldest records, which stay in the buffer; none once `close` has given up."""
        batch: list[Record] = []
        batch_bytes = 0
        with self._settled:  # `close` clears the buffer under this lock
            for index in range(min(BATCH, len(self._records))):
                batch_bytes += _size(self._records[index])
                if batch and batch_bytes > BATCH_BYTES:
                    break
                batch.append(self._records[index])
        return batch

    def _settle(self, records: Sequence[Record], result: Literal["written", "lost"]) -> None:
        with self._settled:
            if self._given_up.is_set():
                return  # close() has counted them as lost
            for record in records:
                self._records.popleft()
                self._bytes_released += _size(record)
            self._settled.notify_all()
        self._count(result, records)

    def _count(self, result: Literal["written", "lost"], records: Sequence[Record]) -> None:
        exposures = sum(isinstance(record, Exposure) for record in records)
        impressions = sum(isinstance(record, Impression) for record in records)
        self._metrics.count(f"exposures_{result}_total", by=exposures)
        self._metrics.count(f"impressions_{result}_total", by=impressions)
        if result == "lost":
            self._metrics.count("shadow_results_lost_total", by=len(records) - exposures - impressions)


def _size(record: Record) -> int:
    """Return about how many bytes of memory an impression takes; 0 for the other records, which are small."""
    if not isinstance(record, Impression):
        return 0
    ids = record.ids or ()
    pointers = 8 * (len(record.places) + len(ids))
    numbers = 32 * len(record.places)
    texts = sum(map(getsizeof, (*ids, record.teams_by_index, record.unit, record.query_id)))
    return pointers + numbers + texts
