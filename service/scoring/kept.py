"""Scores that are kept: in a replica's memory, and on the disk of its node.

The event loop asks the memory itself, and the disk by a thread. Another thread writes what was computed,
twice a second. A store that fails is left alone, and its rows are computed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.service.config.settings import Settings
from headroom.service.engine.threads import PairRow, RowScore, row_scores
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring.cache import ScoreCache
from headroom.service.scoring.store import (
    USED_S,
    Found,
    ModelKey,
    ScoreStore,
    StoreUnavailable,
    logits_matrix,
    may_pass,
    model_key,
)

logger = logging.getLogger("headroom.store")

WRITE_S = 0.5
"""Seconds between two writes: other replicas know a score after that."""

WAITING_ROWS = 100_000
"""At most this many scores wait to be written; more are not kept."""

READ_S = 0.25
"""A disk that has not answered after this time is not waited for."""

WAITING_READS = 64
"""If this many requests wait for the disk, it is not asked."""

PAUSE_S = 30.0
"""Seconds until the next attempt to write, to open the file or to register a checkpoint, after an error that
may pass, such as a full disk."""

CLOSE_S = 5.0
"""How long `close` waits for the last write."""


@dataclass(slots=True)
class Missing:
    """The rows that are to be computed, and what they are to be kept under.

    rows: those whose scores are not known. in_memory, on_disk: their keys there; empty without one.
    """

    rows: list[PairRow]
    in_memory: list[bytes] = field(default_factory=list)
    on_disk: list[bytes] = field(default_factory=list)


class KeptScores:
    """The scores that were computed before. It belongs to the event loop."""

    def __init__(self, cache: ScoreCache | None, store: DiskScores | None, metrics: Metrics) -> None:
        self._cache = cache
        self._store = store
        self._metrics = metrics

    async def recall(self, rows: Sequence[PairRow]) -> Missing:
        """Give the rows whose scores are known their results; return the others."""
        missing = Missing(list(rows))
        if self._cache is not None:
            found = self._cache.recall(rows)
            missing = Missing([row for _, row in found], [key for key, _ in found])
            self._count("cache_total", hits=len(rows) - len(found), misses=len(found))
        if self._store is None or not missing.rows:
            return missing
        keys = await self._store.recall(missing.rows)
        if self._cache is not None:
            known = zip(missing.in_memory, missing.rows, strict=True)
            self._cache.keep([(key, row) for key, row in known if row.result is not None])
        unknown = [index for index, row in enumerate(missing.rows) if row.result is None]
        hits = len(missing.rows) - len(unknown)
        asked = len([key for key in keys if key])
        self._count("store_total", hits=hits, misses=asked - hits)
        return Missing(
            [missing.rows[index] for index in unknown],
            [missing.in_memory[index] for index in unknown if missing.in_memory],
            [keys[index] for index in unknown if keys],
        )

    def keep(self, missing: Missing) -> None:
        """Keep the scores of rows that were computed."""
        if self._cache is not None:
            self._cache.keep(list(zip(missing.in_memory, missing.rows, strict=True)))
        if self._store is not None and missing.on_disk:
            self._store.keep(missing.rows, missing.on_disk)

    def _count(self, name: str, *, hits: int, misses: int) -> None:
        self._metrics.count(name, "hit", by=hits)
        self._metrics.count(name, "miss", by=misses)


class DiskScores:
    """The score store as a replica uses it; see headroom.service.scoring.store.

    path: the file. If it cannot be opened now, as on a full disk, `run` tries again. max_bytes: how large it
    may grow. Raises ModelError if it is no store.
    """

    def __init__(self, path: Path, max_bytes: int, metrics: Metrics) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._writer: ScoreStore | None = None
        self._reader: ScoreStore | None = None
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._models: WeakKeyDictionary[Classifier, ModelKey] = WeakKeyDictionary()
        self._unregistered: WeakSet[Classifier] = WeakSet()
        self._registering = threading.Lock()
        self._scores: defaultdict[ModelKey, dict[bytes, bytes]] = defaultdict(dict)
        self._recalled: defaultdict[ModelKey, set[bytes]] = defaultdict(set)
        self._waiting_rows = 0
        self._waiting_reads = 0
        self._paused_until = 0.0
        self._register_at = 0.0
        self._write_use_at = 0.0
        self.is_usable = True
        try:
            self._open()
        except StoreUnavailable as error:
            self._paused_until = time.monotonic() + PAUSE_S
            metrics.set_gauge("store_usable", 0)
            metrics.notify_operator(
                f"{error}; the service goes on without it, and tries to open it every {PAUSE_S:.0f} s"
            )

    def register(self, classifiers: Iterable[Classifier]) -> None:
        """Begin to keep the scores of checkpoints that were just loaded. It reads their files."""
        with self._registering:
            for classifier in classifiers:
                if classifier not in self._models and classifier.directory is not None:
                    self._unregistered.add(classifier)
            self._read_unregistered()

    def keeps_all(self) -> bool:
        """Return whether the file is open, and the scores of every loaded checkpoint are kept in it."""
        return self._writer is not None and self.is_usable and not self._unregistered

    async def recall(self, rows: Sequence[PairRow]) -> list[bytes]:
        """Give the rows whose scores are known their results; return the keys of all, or none if the store
        cannot be asked. The key of a row whose checkpoint is not registered is empty."""
        if self._reader is None or not self.is_usable or self._waiting_reads >= WAITING_READS:
            return []
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._reads, self._look_up, self._reader, rows)
        self._waiting_reads += 1
        reading.add_done_callback(self._has_read)
        await asyncio.wait([reading], timeout=READ_S)
        if not reading.done() or reading.exception() is not None:
            return []
        keys, results, unmarked = reading.result()
        for index, result in results.items():
            rows[index].result = result
        for model, known in unmarked.items():
            if self._waiting_rows < WAITING_ROWS:
                self._recalled[model].update(known)
                self._waiting_rows += len(known)
        return keys

    def keep(self, rows: Sequence[PairRow], keys: Sequence[bytes]) -> None:
        """Keep the scores of rows that were computed, soon. keys: as `recall` returned them."""
        lost = 0
        for key, row in zip(keys, rows, strict=True):
            if not key or not isinstance(row.result, RowScore):
                continue
            if self._waiting_rows >= WAITING_ROWS or not self.is_usable:
                lost += 1
                continue
            self._scores[self._models[row.lane.classifier]][key] = row.result.logits.tobytes()
            self._waiting_rows += 1
        if lost:
            self._metrics.count("store_lost_total", by=lost)

    async def run(self) -> None:
        """Write what waits, again and again, and that the loaded checkpoints are in use."""
        while True:
            await asyncio.sleep(WRITE_S)
            if not self.is_usable or time.monotonic() < self._paused_until:
                continue
            is_registering_due = self._unregistered and time.monotonic() >= self._register_at
            if self._writer is None or is_registering_due:
                await asyncio.get_running_loop().run_in_executor(self._writes, self._catch_up)
            if self._writer is not None and (self._waiting_rows or time.monotonic() >= self._write_use_at):
                await self._write(self._writer)

    async def close(self) -> None:
        """Write what waits, and close the file.

        One connection after the other: only the last one empties SQLite's log into the file, and of two
        that close at the same time each may take the other for the last.
        """
        if self._writer is not None and self._waiting_rows and self.is_usable:
            await asyncio.wait([asyncio.ensure_future(self._write(self._writer))], timeout=CLOSE_S)
        self.is_usable = False
        await asyncio.to_thread(self._reads.shutdown)
        self._writes.submit(self._close_files)
        await asyncio.to_thread(self._writes.shutdown)

    def _open(self) -> None:
        """Open the file. Raises ModelError."""
        writer = ScoreStore(self._path, self._max_bytes)
        try:
            self._reader = ScoreStore(self._path)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._metrics.set_gauge("store_usable", 1)

    def _close_files(self) -> None:
        for store in (self._reader, self._writer):
            if store is not None:
                store.close()

    def _read_unregistered(self) -> None:
        """Read the files of the checkpoints that are not registered yet."""
        for classifier in list(self._unregistered):
            try:
                self._models[classifier] = model_key(classifier)
            except (OSError, ModelError) as error:
                self._register_at = time.monotonic() + PAUSE_S
                logger.warning("%s keeps no scores of %s: %s", self._path, classifier.name, error)
                continue
            self._unregistered.discard(classifier)
            self._write_use_at = 0.0

    def _catch_up(self) -> None:
        """Try again what failed before: to open the file, and to register checkpoints."""
        try:
            if self._writer is None and self.is_usable:
                self._open()
                logger.info("score store %s: it is in use now", self._path)
        except ModelError as error:
            self._failed(error)
        with self._registering:
            self._read_unregistered()

    def _look_up(
        self, reader: ScoreStore, rows: Sequence[PairRow]
    ) -> tuple[list[bytes], dict[int, Any], dict[ModelKey, list[bytes]]]:
        """Return the key of each row, the results of those that are known, and which are not marked yet."""
        keys = [b""] * len(rows)
        results: dict[int, Any] = {}
        unmarked: dict[ModelKey, list[bytes]] = {}
        for classifier in dict.fromkeys(row.lane.classifier for row in rows):
            model = self._models.get(classifier)
            if model is None:
                continue
            indices = [index for index, row in enumerate(rows) if row.lane.classifier is classifier]
            found = reader.look_up(model, [(rows[index].pair, rows[index].mask) for index in indices])
            for index, key in zip(indices, found.keys, strict=True):
                keys[index] = key
            results |= _results(classifier, indices, found)
            unmarked[model] = found.unmarked
        return keys, results, unmarked

    def _has_read(self, reading: asyncio.Future[Any]) -> None:
        self._waiting_reads -= 1
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            self._failed(error)

    async def _write(self, writer: ScoreStore) -> None:
        """Write what waits, on the thread; if that fails, it is lost. Now and then, write also which models
        are in use."""
        scores = self._scores
        recalled = self._recalled
        count = sum(map(len, scores.values()))
        self._scores = defaultdict(dict)
        self._recalled = defaultdict(set)
        self._waiting_rows = 0
        models = set(scores) | set(recalled)
        if time.monotonic() >= self._write_use_at:
            self._write_use_at = time.monotonic() + USED_S
            models |= {
                self._models[loaded] for one in self._models.keyrefs() if (loaded := one()) is not None
            }

        def write() -> int:
            """Return how many bytes of the file hold something then."""
            for model in models:
                writer.keep(model, scores.get(model, {}), recalled.get(model, ()))
            return writer.bytes_used

        try:
            size = await asyncio.get_running_loop().run_in_executor(self._writes, write)
            self._metrics.count("store_written_total", by=count)
            self._metrics.set_gauge("store_bytes", size)
        except (sqlite3.Error, OSError) as error:
            self._metrics.count("store_lost_total", by=count)
            self._write_use_at = 0.0
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Leave a damaged file alone for good; try again later after an error that may pass."""
        reason = str(error) if isinstance(error, ModelError) else f"score store {self._path}: {error}"
        if may_pass(error):
            self._paused_until = time.monotonic() + PAUSE_S
            logger.warning("%s; next attempt to write in %.0f s", reason, PAUSE_S)
        elif self.is_usable:
            self.is_usable = False
            self._metrics.set_gauge("store_usable", 0)
            self._metrics.notify_operator(
                f"{reason}; it is not used any more: remove the file, and restart the service to begin a new "
                "one"
            )


def kept_scores(settings: Settings, disk: DiskScores | None, metrics: Metrics) -> KeptScores | None:
    """Return what keeps scores by the settings; None if nothing does. disk: the store, if it is usable."""
    if not settings.score_cache_size and settings.score_store is None:
        return None
    cache = ScoreCache(settings.score_cache_size) if settings.score_cache_size else None
    return KeptScores(cache, disk, metrics)


def open_store(settings: Settings, metrics: Metrics) -> DiskScores | None:
    """Return the store of the settings; None if there is none, or if it cannot be used, which is said."""
    if settings.score_store is None:
        return None
    try:
        return DiskScores(settings.score_store, settings.score_store_mb * 1_000_000, metrics)
    except ModelError as error:
        metrics.set_gauge("store_usable", 0)
        metrics.notify_operator(f"{error}; the service goes on without it")
        return None


def _results(classifier: Classifier, indices: Sequence[int], found: Found) -> dict[int, Any]:
    """Return the results of the rows whose logits were found, by the rows' indices."""
    known = [
        (index, found.logits[key])
        for index, key in zip(indices, found.keys, strict=True)
        if key in found.logits
    ]
    if not known:
        return {}
    scores = row_scores(classifier, logits_matrix([logits for _, logits in known]))
    return {index: score for (index, _), score in zip(known, scores, strict=True)}
