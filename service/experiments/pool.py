"""Adds up the windows of all replicas, so that guardrails judge an arm by all of its requests.

Each second a replica stores its windows in the experiments' database, in place of its earlier ones, and reads
those of the others, in a thread. Neither requests nor the event loop wait for it. While the database does not
answer, each replica judges its own requests alone. The rows are as many as the arms times the replicas that
served in the last minute. Their age is measured by the database's clock, because the clocks of nodes differ.
"""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import tables
from headroom.service.experiments.database import may_delete
from headroom.service.experiments.guardrails import FEW_UNITS
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.tables import guardrail_windows
from headroom.service.experiments.windows import ArmWindows, Counts, SlidingWindow

PERIOD_SECONDS = 1.0
MAX_PERIOD_SECONDS = 5.0
REPLICAS_PER_SECOND = 40
"""If more replicas exchange their windows, each does so less often, because all read the rows of all."""

SHARED_FAILING_UNITS = FEW_UNITS
"""Units with most errors, and with most slow requests, that a replica stores. With fewer, it could not be
told whether few units failed."""

SHARED_SCORES = 100
"""Units whose score a replica stores: the latest."""

MAX_SCORES_OF_OTHERS = 10_000
"""Units of other replicas whose scores count."""

DELETE_EVERY = 60
"""Exchanges per deletion of old rows."""

FRESH_SECONDS = 15.0
"""An older row does not count: its replica is gone, or no longer reaches the database."""

KEPT_SECONDS = 60.0
"""An older row is deleted."""

Arm = tuple[str, str]
"""An experiment's name and an arm's."""

Values = dict[str, str | int]
"""A row of the table: an arm's last minute on one replica, without the time."""


@dataclass(slots=True)
class _Others:
    """One arm's windows on the other replicas. bins: of the scores of some of their units, by mark."""

    basis: str
    counts: Counts = field(default_factory=lambda: Counts(replicas=0))
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, row: Row[Any]) -> None:
        """Add the window of one more replica."""
        units = orjson.loads(row.units)
        self.counts.add(
            Counts(
                row.requests,
                row.errors,
                row.slow,
                errors_by_unit=Counter(dict(units["errors"])),
                slow_by_unit=Counter(dict(units["slow"])),
            )
        )
        self.counts.replicas += 1
        if len(self.bins) < MAX_SCORES_OF_OTHERS:
            self.bins.update(units["scores"])


class WindowPool:
    """The windows of all replicas. Belongs to the event loop, except for the exchange with the database."""

    def __init__(self, ledger: Ledger, windows: ArmWindows) -> None:
        self._ledger = ledger
        self._windows = windows
        self._replica = token_hex(8)
        self._others: Mapping[Arm, _Others] = {}
        self._read_at = -math.inf  # when the last exchange began, on the ledger's monotonic clock
        self._exchanges = 0
        self._exchanging = threading.Lock()
        self._is_closed = False

    async def run(self) -> None:
        """Exchange the windows until cancelled."""
        while True:
            await asyncio.sleep(self.period())
            with suppress(DatabaseUnavailable):  # the ledger, which asks as often, says so
                await self.exchange()

    def close(self) -> None:
        """Wait until no exchange is under way, and refuse further ones. Blocks."""
        with self._exchanging:
            self._is_closed = True

    async def exchange(self) -> None:
        """Store this replica's windows, and read those of the others. Raises DatabaseUnavailable."""
        now = self._ledger.monotonic()
        bases: dict[Arm, str] = {}
        rows = []
        running = [name for name, each in self._ledger.experiments.items() if each.is_running]
        for (experiment, arm), window in self._windows.all().items():
            if experiment not in running:
                continue
            bases[experiment, arm] = window.basis
            counts = window.total(now)
            if counts.requests:
                rows.append(self._row((experiment, arm), window, counts))
        self._others = await asyncio.to_thread(self._exchange, rows, bases) if bases else {}
        self._read_at = now

    def counts(self, experiment: str, arm: str) -> Counts:
        """Return the counts of one arm's last minute on all replicas.

        On this one alone while the database does not answer.
        """
        counts = self._windows.counts(experiment, arm)
        window = self._windows.of(experiment, arm)
        others = self._others.get((experiment, arm))
        if window is None or others is None or others.basis != window.basis:
            return counts
        if self._ledger.monotonic() - self._read_at > FRESH_SECONDS:
            return counts
        counts.replicas = others.counts.replicas + (1 if counts.requests else 0)
        counts.add(others.counts)
        counts.scores += window.histogram_of_others(others.bins)
        return counts

    def period(self) -> float:
        """Return the seconds between two exchanges: more, the more replicas there are."""
        replicas = 1 + max((others.counts.replicas for others in self._others.values()), default=0)
        return min(MAX_PERIOD_SECONDS, max(PERIOD_SECONDS, replicas / REPLICAS_PER_SECOND))

    def _row(self, arm: Arm, window: SlidingWindow, counts: Counts) -> Values:
        units = {
            "errors": counts.errors_by_unit.most_common(SHARED_FAILING_UNITS),
            "slow": counts.slow_by_unit.most_common(SHARED_FAILING_UNITS),
            "scores": window.latest_bins(SHARED_SCORES),
        }
        return {
            "experiment": arm[0],
            "arm": arm[1],
            "replica": self._replica,
            "basis": window.basis,
            "requests": counts.requests,
            "errors": counts.errors,
            "slow": counts.slow,
            "units": orjson.dumps(units).decode(),
        }

    def _exchange(self, rows: Sequence[Values], bases: Mapping[Arm, str]) -> dict[Arm, _Others]:
        """Return what others stored of the arms in `bases`, as far as it is counted on the same basis."""
        others: dict[Arm, _Others] = {}
        with self._exchanging:
            if self._is_closed:
                return others
            store = self._ledger.store
            if self._exchanges % DELETE_EVERY == 0:
                with store.write() as db:
                    delete_old(db)
            self._exchanges += 1
            with store.write() if rows else store.read() as db:
                _replace_own(db, rows)
                found = _of_others(db, self._replica, {experiment for experiment, _ in bases})
        for row in found:
            arm = (row.experiment, row.arm)
            if bases.get(arm) == row.basis:
                others.setdefault(arm, _Others(row.basis)).add(row)
        return others


def _replace_own(db: Connection, rows: Sequence[Values]) -> None:
    """Store a replica's rows in place of its earlier ones."""
    if not rows:
        return
    statement = tables.insert(db, guardrail_windows).values(time=tables.clock(db))
    keys = list(guardrail_windows.primary_key)
    others = {
        column.name: statement.excluded[column.name] for column in guardrail_windows.c if column not in keys
    }
    db.execute(statement.on_conflict_do_update(index_elements=keys, set_=others), rows)


def _of_others(db: Connection, replica: str, experiments: Collection[str]) -> Sequence[Row[Any]]:
    """Return the fresh rows of these experiments that other replicas have stored."""
    query = select(guardrail_windows).where(
        guardrail_windows.c.experiment.in_(list(experiments)),
        guardrail_windows.c.replica != replica,
        guardrail_windows.c.time > tables.clock(db) - FRESH_SECONDS,
    )
    return db.execute(query).all()


def delete_old(db: Connection) -> None:
    """Delete the rows of replicas that are gone, unless another replica deletes some rows now."""
    if may_delete(db):
        is_old = guardrail_windows.c.time < tables.clock(db) - KEPT_SECONDS
        db.execute(delete(guardrail_windows).where(is_old))
