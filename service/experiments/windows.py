"""Sliding windows over the requests of each arm: the last minute, on this replica and on all together.

Every two seconds a replica stores its windows in the experiments' database, in place of its earlier ones, and
reads those of the others, in a thread. Neither requests nor the event loop wait for it. While the database
does not answer, each replica judges its own requests alone. The rows are as many as the arms times the
replicas. Their age is measured by the database's clock, because the clocks of nodes differ.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from secrets import token_hex
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, delete, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import tables
from headroom.service.experiments.database import may_delete
from headroom.service.experiments.definition import Guardrails
from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.tables import guardrail_windows

Scores = NDArray[np.float32]

SLOT_SECONDS = 2.0
SLOTS = 30
"""A window is a minute long, and advances by a slot at a time."""

SCORE_BINS = 100

MAX_FAILING_UNITS = 100
"""Failing units that a slot tells apart. Where there are more, no single one decides."""

MAX_SCORED_UNITS = 1000
"""Units whose scores one slot counts, so that a long window does not fill the memory."""

MARK_BYTES = 3

FORMAT = 3
"""Changes with the meaning of a count, so that releases that count otherwise are not added up."""


PERIOD_SECONDS = 2.0

FRESH_SECONDS = 15.0
"""An older row does not count, and is deleted: its replica is gone, or no longer reaches the database."""

SHARED_FAILING_UNITS = 10
"""Units with most errors, and with most slow requests, that a replica stores."""

SHARED_SCORES = 100
"""Units whose score a replica stores: the latest."""

Counted = tuple[str, str, str]
"""An experiment's name, an arm's, and what is counted of it (`SlidingWindow.basis`)."""


def mark_of(unit: str) -> int:
    """Return a unit's mark: 24 bits of its hash, by which replicas know a unit that several served."""
    return int.from_bytes(blake2b(unit.encode(), digest_size=MARK_BYTES).digest())


@dataclass(slots=True)
class Counts:
    """Counts of one arm's requests in some time.

    errors: requests that the arm's variant failed. slow: requests over the guardrail's limit.
    errors_by_unit, slow_by_unit: the same by the unit's mark, for MAX_FAILING_UNITS units of each slot.
    bins: the bin of one score of each unit, by its mark, earliest first: neither the requests of a unit nor
        the titles of a request are independent samples.
    replicas: how many saw these requests.
    """

    requests: int = 0
    errors: int = 0
    slow: int = 0
    errors_by_unit: Counter[int] = field(default_factory=Counter)
    slow_by_unit: Counter[int] = field(default_factory=Counter)
    bins: dict[int, int] = field(default_factory=dict)
    replicas: int = 1

    @property
    def scores(self) -> Floats:
        """The histogram of the units' scores over [0, 1], (SCORE_BINS,)."""
        bins = np.array(list(self.bins.values()), np.int64)
        return np.bincount(bins, minlength=SCORE_BINS).astype(np.float64)

    def add(self, other: Counts) -> None:
        """Add the counts of other requests of the arm, on the same replicas. A unit keeps its first score."""
        self.requests += other.requests
        self.errors += other.errors
        self.slow += other.slow
        self.errors_by_unit.update(other.errors_by_unit)
        self.slow_by_unit.update(other.slow_by_unit)
        for mark, bin_ in other.bins.items():
            self.bins.setdefault(mark, bin_)


_counts = TypeAdapter(Counts)


class SlidingWindow:
    """Counts the requests of the last minute. Not thread-safe: it belongs to the event loop.

    basis: what is counted, as text.
    """

    def __init__(self, limits: Guardrails, basis: str = "") -> None:
        self.basis = basis
        self._slow_s = math.inf if limits.p99_ms is None else limits.p99_ms / 1000
        self._counts_scores = limits.score_shift is not None
        self._slots: deque[tuple[int, Counts]] = deque()

    def record(
        self,
        now: float,
        elapsed: float,
        *,
        unit: str = "",
        scores: Callable[[], Scores] | None = None,
        is_error: bool = False,
    ) -> None:
        """Count one request of a unit that took `elapsed` seconds.

        scores: returns (pairs,) in [0, 1]. It is called only if a guardrail needs them.
        """
        number = int(now / SLOT_SECONDS)
        if not self._slots or self._slots[-1][0] != number:
            self._expire(number)
            self._slots.append((number, Counts()))
        counts = self._slots[-1][1]
        mark = mark_of(unit)
        counts.requests += 1
        if is_error:
            counts.errors += 1
            _count(counts.errors_by_unit, mark)
        if elapsed > self._slow_s:
            counts.slow += 1
            _count(counts.slow_by_unit, mark)
        is_new = mark not in counts.bins and len(counts.bins) < MAX_SCORED_UNITS
        if scores is not None and self._counts_scores and is_new and len(values := scores()):
            score = float(values[mark % len(values)])  # the mark draws a title
            counts.bins[mark] = min(int(score * SCORE_BINS), SCORE_BINS - 1)

    def total(self, now: float) -> Counts:
        """Return the counts of the window that ends now."""
        self._expire(int(now / SLOT_SECONDS))
        total = Counts()
        for _, counts in self._slots:
            total.add(counts)
        return total

    def _expire(self, number: int) -> None:
        while self._slots and self._slots[0][0] <= number - SLOTS:
            self._slots.popleft()


class Windows:
    """Keeps one window per arm, and exchanges them with the other replicas.

    A window starts anew if what it counts changes: the arm's variant, or a limit that decides what is
    counted. Any other edit leaves it. Belongs to the event loop, except for the exchange with the database.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._experiments = ledger.experiments  # that the windows are of
        self._windows: dict[tuple[str, str], SlidingWindow] = {}
        self._replica = token_hex(8)
        self._others: Mapping[Counted, Counts] = {}
        self._read_at = -math.inf  # when the last exchange began, on the ledger's monotonic clock
        self._exchanging = threading.Lock()
        self._is_closed = False

    def of(self, experiment: str, arm: str) -> SlidingWindow | None:
        """Return one arm's window on this replica; None if there is no such arm."""
        return self._present().get((experiment, arm))

    def counts(self, experiment: str, arm: str) -> Counts:
        """Return the counts of one arm's last minute on all replicas.

        On this one alone while the database does not answer.
        """
        now = self._ledger.monotonic()
        window = self.of(experiment, arm)
        if window is None:
            return Counts()
        counts = window.total(now)
        others = self._others.get((experiment, arm, window.basis))
        if others is not None and now - self._read_at <= FRESH_SECONDS:
            counts.replicas = others.replicas + (1 if counts.requests else 0)
            counts.add(others)
        return counts

    async def run(self) -> None:
        """Exchange the windows until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            with suppress(DatabaseUnavailable):  # the ledger, which asks as often, says so
                await self.exchange()

    def close(self) -> None:
        """Wait until no exchange is under way, and refuse further ones. Blocks."""
        with self._exchanging:
            self._is_closed = True

    async def exchange(self) -> None:
        """Store this replica's windows, and read those of the others. Raises DatabaseUnavailable."""
        now = self._ledger.monotonic()
        running = {name for name, each in self._ledger.experiments.items() if each.is_running}
        rows = []
        for (experiment, arm), window in self._present().items():
            counts = window.total(now)
            if experiment in running and counts.requests:
                rows.append(
                    {
                        "experiment": experiment,
                        "arm": arm,
                        "replica": self._replica,
                        "basis": window.basis,
                        "counts": _counts.dump_json(_shared(counts)).decode(),
                    }
                )
        self._others = await asyncio.to_thread(self._exchange, rows, running) if running else {}
        self._read_at = now

    def _exchange(
        self, rows: Sequence[Mapping[str, str]], experiments: Collection[str]
    ) -> dict[Counted, Counts]:
        """Return what others stored of these experiments."""
        with self._exchanging:
            if self._is_closed:
                return {}
            store = self._ledger.store
            with store.write() if rows else store.read() as db:
                if rows:
                    _replace_own(db, rows)
                found = _of_others(db, self._replica, experiments)
        others: dict[Counted, Counts] = {}
        for row in found:
            if not row.basis.startswith(f"{FORMAT} "):  # another release's, which may not be readable here
                continue
            counted = (row.experiment, row.arm, row.basis)
            total = others.setdefault(counted, Counts(replicas=0))
            total.add(_counts.validate_json(row.counts))
            total.replicas += 1
        return others

    def _present(self) -> Mapping[tuple[str, str], SlidingWindow]:
        """Return this replica's windows by experiment and arm, as what is in force has them."""
        experiments = self._ledger.experiments
        if experiments is not self._experiments:
            self._experiments = experiments
            self._renew()
        return self._windows

    def _renew(self) -> None:
        windows = {}
        definitions = self._ledger.declared.definitions
        for name, experiment in self._experiments.items():
            limits = experiment.config.guardrails
            for arm in experiment.config.arms:
                definition = definitions.get(arm.variant, "")
                counted = (limits.p99_ms, limits.score_shift is not None)
                basis = f"{FORMAT} {arm.variant} {definition} {counted}"
                window = self._windows.get((name, arm.name))
                if window is None or window.basis != basis:
                    window = SlidingWindow(limits, basis)
                windows[name, arm.name] = window
        self._windows = windows


def _count(by_unit: Counter[int], mark: int) -> None:
    if mark in by_unit or len(by_unit) < MAX_FAILING_UNITS:
        by_unit[mark] += 1


def _shared(counts: Counts) -> Counts:
    """Return what the other replicas need of an arm's counts, which as JSON is at most some kilobytes."""
    return replace(
        counts,
        errors_by_unit=Counter(dict(counts.errors_by_unit.most_common(SHARED_FAILING_UNITS))),
        slow_by_unit=Counter(dict(counts.slow_by_unit.most_common(SHARED_FAILING_UNITS))),
        bins=dict(islice(reversed(counts.bins.items()), SHARED_SCORES)),
    )


def _replace_own(db: Connection, rows: Sequence[Mapping[str, str]]) -> None:
    """Store a replica's rows in place of its earlier ones, and delete those of replicas that are gone."""
    now = tables.clock(db)
    new = tables.insert(db, guardrail_windows).values(time=now)
    changed = {name: new.excluded[name] for name in ("basis", "counts", "time")}
    keys = list(guardrail_windows.primary_key)
    db.execute(new.on_conflict_do_update(index_elements=keys, set_=changed), rows)
    if may_delete(db):
        db.execute(delete(guardrail_windows).where(guardrail_windows.c.time < now - FRESH_SECONDS))


def _of_others(db: Connection, replica: str, experiments: Collection[str]) -> Sequence[Row[Any]]:
    """Return the fresh rows of these experiments that other replicas have stored."""
    query = select(guardrail_windows).where(
        guardrail_windows.c.experiment.in_(list(experiments)),
        guardrail_windows.c.replica != replica,
        guardrail_windows.c.time > tables.clock(db) - FRESH_SECONDS,
    )
    return db.execute(query).all()
