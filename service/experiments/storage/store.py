"""The experiments' database: exposures, outcomes, shadow results and actions. SQLAlchemy Core, no ORM.

All methods block, may be called from any thread, and raise DatabaseUnavailable if the database cannot be
reached. The first call that succeeds brings the schema up to date, so that a store made while the database
was down works as soon as it is back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, insert, select

from service.errors import DatabaseUnavailable
from service.experiments.definition.events import (
    Action,
    Exposure,
    Outcome,
    OutcomeReceipt,
    ShadowResult,
)
from service.experiments.storage import (
    absolute_differences,
    action_log,
    connection,
    exposed_units,
    retention,
    upserts,
)
from service.experiments.storage.migrate import migrate
from service.experiments.storage.outcomes import record, sorted_out
from service.experiments.storage.schema import (
    epoch_counts,
    exposure_counts,
    shadow_histograms,
    shadow_results,
)

LOOKED_AT = 5_000
"""Old outcomes that one call of `delete_unexposed` looks at: some milliseconds."""

_DAY_S = 86_400


class Store:
    """One database. Nothing is opened before the first call.

    url: sqlite:////path/file.db or postgresql://user:password@host/name. Default: `connection.default_url()`.
    clock: returns seconds since the epoch, for the time at which rows arrive.
    Raises ValueError for another kind of URL.
    """

    def __init__(self, url: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.url = connection.parse_url(url or connection.default_url())
        self._engine = connection.connect(self.url)
        self._clock = clock
        self._migrated = False
        self._migrating = threading.Lock()
        self.on_failure: Callable[[str], None] = lambda _: None
        """Is told why the database failed, each time."""

    def __repr__(self) -> str:
        return f"Store({self.url})"  # a URL hides its password

    def migrate(self) -> None:
        """Bring the schema up to date. Several replicas may do so at once."""
        with self._migrating:
            if not self._migrated:
                migrate(self._engine)
                self._migrated = True

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        self._engine.dispose()

    def add_exposures(self, rows: Sequence[Exposure]) -> int:
        """Store the exposures of units that are new, or new in their epoch.

        Return how many units are new.
        """
        with self._write() as db:
            return exposed_units.add(db, [_exposure(row) for row in rows])

    def add_shadow(self, rows: Sequence[ShadowResult]) -> None:
        """Store shadow results."""
        pairs: Counter[tuple[str, str, int, int]] = Counter()
        for row in rows:
            for number, count in absolute_differences.histogram(row.abs_deltas).items():
                pairs[row.experiment, row.arm, int(row.time // _DAY_S), number] += count
        with self._write() as db:
            for chunk in upserts.chunks([_shadow(row) for row in rows]):
                db.execute(insert(shadow_results), chunk)
            upserts.add_counts(
                db,
                shadow_histograms,
                "pairs",
                [
                    {"experiment": e, "arm": a, "day": d, "bin": b, "pairs": n}
                    for (e, a, d, b), n in sorted(pairs.items())
                ],
            )

    def record_outcomes(
        self,
        rows: Sequence[Outcome],
        known: Collection[str] = (),
        metrics: Mapping[str, Collection[str]] = MappingProxyType({}),
        covariates: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> OutcomeReceipt:
        """Store outcomes. The same id again is a duplicate, whatever its other fields hold.

        known: the experiments of the live config. An outcome is unknown and not stored if its experiment is
        neither among them nor in the database.
        metrics: the metrics of each experiment. An outcome of another metric is unknown and not stored. An
        experiment that is missing here takes any metric.
        covariates: the metrics of each experiment that say what units did before their exposure. Their
        outcomes wait for it as long as retention allows, the others for a day.
        """
        kept, unknown = sorted_out(rows, self._experiments(rows, known), metrics)
        history = {(experiment, name) for experiment, names in covariates.items() for name in names}
        stored, pending = 0, []
        for chunk in upserts.chunks(kept):
            with self._write() as db:
                new, unmatched = record(db, chunk, history, received=self._clock())
            stored += new
            pending += unmatched
        return OutcomeReceipt(
            accepted=stored - len(pending),
            duplicates=len(kept) - stored,
            pending=len(pending),
            unknown=len(unknown),
            pending_outcomes=pending,
            unknown_outcomes=unknown,
        )

    def record_action(self, action: Action) -> int:
        """Append to the log of actions and return the number; for a second start, that of the first."""
        return self.record_actions([action])[0]

    def record_actions(self, rows: Sequence[Action]) -> list[int]:
        """Append all to the log of actions, or none. Return their numbers as `record_action` does."""
        with self._write() as db:
            return action_log.append(db, rows)

    def check_action(self, action: Action) -> None:
        """Raise what `record_action` would raise; record nothing."""
        with self._write() as db, db.begin_nested() as attempt:
            action_log.append(db, [action])
            attempt.rollback()

    def act(self, experiment: str, decide: Callable[[Sequence[Action]], Sequence[Action]]) -> None:
        """Append what `decide` makes of the experiment's log; nothing comes in between.

        If `decide` raises, nothing is recorded.
        """
        with self._write() as db:
            action_log.lock(db)
            action_log.append(db, decide([action for _, action in action_log.read(db, [experiment])]))

    def actions(self, experiments: Collection[str]) -> list[tuple[int, Action]]:
        """Return all actions on these experiments with their numbers, in their order."""
        with self.read() as db:
            return action_log.read(db, experiments)

    def exposure_counts(self, experiments: Collection[str]) -> dict[str, dict[str, int]]:
        """Return the units ever exposed, by experiment and arm. The cost does not grow with the units."""
        counts: dict[str, dict[str, int]] = {experiment: {} for experiment in experiments}
        query = select(exposure_counts).where(exposure_counts.c.experiment.in_(list(experiments)))
        with self.read() as db:
            for row in db.execute(query):
                counts[row.experiment][row.arm] = int(row.units)
        return counts

    def epoch_counts(self, experiments: Collection[str]) -> dict[str, dict[str, dict[str, int]]]:
        """Return the units exposed in each epoch, by experiment, epoch (in order of time) and arm."""
        counts: dict[str, dict[str, dict[str, int]]] = {experiment: {} for experiment in experiments}
        query = (
            select(epoch_counts)
            .where(epoch_counts.c.experiment.in_(list(experiments)))
            .order_by(epoch_counts.c.since)
        )
        with self.read() as db:
            for row in db.execute(query):
                counts[row.experiment].setdefault(row.epoch, {})[row.arm] = int(row.units)
        return counts

    def delete_older_than(
        self, cutoff: float, limit: int = upserts.CHUNK, running: Collection[str] = ()
    ) -> int:
        """Delete up to `limit` older rows of each table. Return how many; 0 means that none is left.

        Outcomes for which no exposure came within a day are deleted too. Actions and counts by arm stay,
        and units and outcomes of the `running` experiments; see `delete_unexposed` for those of other units.
        """
        with self._write() as db:
            return retention.delete_chunk(db, cutoff=cutoff, now=self._clock(), limit=limit, running=running)

    def delete_unexposed(
        self, cutoff: float, after: retention.Position | None = None, limit: int = LOOKED_AT
    ) -> retention.Position | None:
        """Look at the next `limit` older outcomes, and delete those of units that were never exposed.

        Return the position for the next call; None at the end.
        """
        with self.read() as db:
            found, position = retention.unexposed(db, cutoff=cutoff, after=after, limit=limit)
        if found:
            with self._write() as db:
                retention.delete_unexposed(db, found)
        return position

    def read(self, *, seconds: int = connection.STATEMENT_S) -> AbstractContextManager[Connection]:
        """Return a transaction for queries. seconds: limit of one statement (PostgreSQL)."""
        return self._transaction(write=False, seconds=seconds)

    def _write(self) -> AbstractContextManager[Connection]:
        return self._transaction(write=True, seconds=connection.STATEMENT_S)

    @contextmanager
    def _transaction(self, *, write: bool, seconds: int) -> Iterator[Connection]:
        try:
            if not self._migrated:
                self.migrate()
            with connection.transaction(self._engine, write=write, seconds=seconds) as db:
                yield db
        except DatabaseUnavailable as error:
            self.on_failure(connection.reason_of(error))
            raise

    def _experiments(self, rows: Sequence[Outcome], known: Collection[str]) -> set[str]:
        """Return the known experiments, and those of the rows that had an exposure."""
        others = {row.experiment for row in rows}.difference(known)
        if not others:
            return set(known)
        query = select(exposure_counts.c.experiment).where(exposure_counts.c.experiment.in_(sorted(others)))
        with self.read() as db:
            return set(known).union(db.scalars(query))


def _exposure(row: Exposure) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Exposure.__slots__}


def _shadow(row: ShadowResult) -> dict[str, Any]:
    pairs = len(row.abs_deltas)
    return {
        "experiment": row.experiment,
        "arm": row.arm,
        "time": row.time,
        "pairs": pairs,
        "mean_delta": row.mean_delta,
        "mean_abs_delta": sum(row.abs_deltas) / pairs if pairs else 0.0,
        "rank_correlation": row.rank_correlation,
        "top10_overlap": row.top10_overlap,
        "ndcg_delta": _difference(row.ndcg_arm, row.ndcg_control),
        "seconds_delta": _difference(row.arm_seconds, row.control_seconds),
        "unit": row.unit,
    }


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
