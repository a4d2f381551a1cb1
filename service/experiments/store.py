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
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select, tuple_

from service.errors import DatabaseUnavailable
from service.experiments import database, outcomes, schema
from service.experiments.events import Action, Exposure, Outcome, OutcomeReceipt, ShadowResult
from service.experiments.histogram import histogram
from service.experiments.schema import actions, epoch_counts, exposures, shadow_histograms, shadow_results

CHUNK = 500
"""Rows per statement; both databases limit a statement's parameters."""

SEARCH_S = 60
"""Limit of the search for old outcomes of units that never came. It holds no lock."""

_DAY_S = 86_400
_LOG_LOCK = 0x6163746E

T = TypeVar("T")


class Store:
    """One database. Nothing is opened before the first call.

    url: sqlite:////path/file.db or postgresql://user:password@host/name. Default: `database.default_url()`.
    clock: returns seconds since the epoch, for the time at which rows arrive.
    Raises ValueError for another kind of URL.
    """

    def __init__(self, url: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.url = database.parse_url(url or database.default_url())
        self._engine = database.connect(self.url)
        self._clock = clock
        self._migrated = False
        self._migrating = threading.Lock()
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the reason each time the database fails."""

    def __repr__(self) -> str:
        return f"Store({self.url})"  # a URL hides its password

    def migrate(self) -> None:
        """Bring the schema up to date. Several replicas may do so at once."""
        with self._migrating:
            if not self._migrated:
                database.migrate(self._engine)
                self._migrated = True

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        self._engine.dispose()

    def add_exposures(self, rows: Sequence[Exposure]) -> int:
        """Store the exposures of units that are new. Return how many are.

        Replicas write in no order, so a stored unit gets the time of an exposure that is earlier. It stays
        in the epoch in which it was counted.
        """
        # Sorted, so that two replicas lock rows in the same order and cannot deadlock.
        values = sorted(map(_values, rows), key=lambda row: (row["experiment"], row["unit"], row["time"]))
        times: dict[tuple[str, str, str], list[float]] = {}
        known: list[dict[str, Any]] = []
        with self._write() as db:
            add = schema.insert_new(db, exposures).returning(*exposures.c)
            for chunk in _chunks(values):
                added = set()
                for row in db.execute(add, chunk):
                    added.add((row.experiment, row.unit))
                    times.setdefault((row.experiment, row.epoch, row.arm), []).append(row.time)
                known += [row for row in chunk if (row["experiment"], row["unit"]) not in added]
            earlier = schema.insert(db, exposures)
            earlier = earlier.on_conflict_do_update(
                index_elements=list(exposures.primary_key),
                set_={"time": earlier.excluded.time},
                where=earlier.excluded.time < exposures.c.time,
            )
            for chunk in _chunks(known):  # after all inserts, for the same reason
                db.execute(earlier, chunk)
            counts = [
                {"experiment": e, "epoch": label, "arm": a, "units": len(since), "since": min(since)}
                for (e, label, a), since in sorted(times.items())
            ]
            for chunk in _chunks(counts):
                db.execute(schema.add_counts(db, epoch_counts, "units"), chunk)
        return sum(map(len, times.values()))

    def add_shadow(self, rows: Sequence[ShadowResult]) -> None:
        """Store shadow results."""
        pairs: Counter[tuple[str, str, int, int]] = Counter()
        for row in rows:
            for number, count in histogram(row.abs_deltas).items():
                pairs[row.experiment, row.arm, int(row.time // _DAY_S), number] += count
        counts = [
            {"experiment": e, "arm": a, "day": d, "bin": b, "pairs": n}
            for (e, a, d, b), n in sorted(pairs.items())
        ]
        with self._write() as db:
            for chunk in _chunks([_shadow_values(row) for row in rows]):
                db.execute(insert(shadow_results), chunk)
            for chunk in _chunks(counts):
                db.execute(schema.add_counts(db, shadow_histograms, "pairs"), chunk)

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
        kept, unknown = outcomes.sort_out(rows, self._experiments(rows, known), metrics)
        history = {(experiment, name) for experiment, names in covariates.items() for name in names}
        parts = []
        for chunk in _chunks(kept):
            with self._write() as db:
                parts.append(outcomes.record(db, chunk, history, received=self._clock()))
        return OutcomeReceipt(
            accepted=sum(part.accepted for part in parts),
            duplicates=sum(part.duplicates for part in parts),
            pending=sum(part.pending for part in parts),
            unknown=len(unknown),
            pending_outcomes=[pending for part in parts for pending in part.pending_outcomes],
            unknown_outcomes=unknown,
        )

    def record_action(self, action: Action) -> int:
        """Append to the log of actions and return the number; for a second start, that of the first."""
        with self._write() as db:
            _lock_log(db)
            return _append(db, action)

    def act(self, experiment: str, decide: Callable[[Sequence[Action]], Sequence[Action]]) -> None:
        """Append what `decide` makes of the experiment's log; nothing comes in between.

        If `decide` raises, nothing is recorded.
        """
        with self._write() as db:
            _lock_log(db)
            for action in decide([action for _, action in _read_log(db, [experiment])]):
                _append(db, action)

    def actions(self, experiments: Collection[str]) -> list[tuple[int, Action]]:
        """Return all actions on these experiments with their numbers, in their order."""
        with self.read() as db:
            return _read_log(db, experiments)

    def epoch_counts(self, experiments: Collection[str]) -> dict[str, dict[str, dict[str, int]]]:
        """Return the units by experiment, epoch in which they first came (in order of time), and arm.

        The cost does not grow with the units.
        """
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

    def delete_older_than(self, cutoff: float, limit: int = CHUNK, running: Collection[str] = ()) -> int:
        """Delete up to `limit` older rows of each table. Return how many; 0 means that none is left.

        Outcomes for which no exposure came within a day are deleted too. Actions and counts stay, and so do
        the units of the `running` experiments and what these did: a unit whose row is gone would count again.
        """
        kept = sorted(running)
        old = (
            *((table, (table.c.time < cutoff) & table.c.experiment.not_in(kept)) for table in _BY_UNIT),
            (shadow_results, shadow_results.c.time < cutoff),
            (shadow_histograms, shadow_histograms.c.day < int(cutoff // _DAY_S)),
        )
        with self._write() as db:
            waited_since = self._clock() - outcomes.GRACE_S
            number = outcomes.settle(db, waited_since, limit)
            return number + sum(_delete(db, table, which, limit) for table, which in old)

    def delete_unexposed(self, cutoff: float, limit: int = 10 * CHUNK) -> int:
        """Delete up to `limit` older outcomes of units that never came. Return how many.

        The search reads all older outcomes, of which nearly all stay. So it holds no lock.
        """
        table = schema.outcomes
        query = select(table.c.experiment, table.c.id).where(table.c.time < cutoff, ~outcomes.EXPOSED)
        with self.read(seconds=SEARCH_S) as db:
            found = db.execute(query.limit(limit)).all()
        for experiment in sorted({row.experiment for row in found}):
            for ids in _chunks([row.id for row in found if row.experiment == experiment]):
                which = (table.c.experiment == experiment) & table.c.id.in_(ids)
                with self._write() as db:
                    db.execute(delete(table).where(which, ~outcomes.EXPOSED))
        return len(found)

    def read(self, *, seconds: int = database.STATEMENT_S) -> AbstractContextManager[Connection]:
        """Return a transaction for queries. seconds: limit of one statement (PostgreSQL)."""
        return self._transaction(write=False, seconds=seconds)

    def _write(self) -> AbstractContextManager[Connection]:
        return self._transaction(write=True, seconds=database.STATEMENT_S)

    @contextmanager
    def _transaction(self, *, write: bool, seconds: int) -> Iterator[Connection]:
        try:
            if not self._migrated:
                self.migrate()
            with database.transaction(self._engine, write=write, seconds=seconds) as db:
                yield db
        except DatabaseUnavailable as error:
            self.on_failure(database.reason_of(error))
            raise

    def _experiments(self, rows: Sequence[Outcome], known: Collection[str]) -> set[str]:
        """Return the known experiments, and those of the rows that had an exposure."""
        others = {row.experiment for row in rows}.difference(known)
        if not others:
            return set(known)
        query = select(epoch_counts.c.experiment).where(epoch_counts.c.experiment.in_(sorted(others)))
        with self.read() as db:
            return set(known).union(db.scalars(query.distinct()))


_BY_UNIT = (schema.outcomes, exposures)


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the rows in lists that fit into one statement."""
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _values(row: Exposure | Action) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def _shadow_values(row: ShadowResult) -> dict[str, Any]:
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


def _lock_log(db: Connection) -> None:
    """Keep others from appending until the transaction ends; so actions are visible in order of number."""
    if database.is_postgresql(db):  # SQLite: writing transactions exclude each other
        db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOG_LOCK})")


def _read_log(db: Connection, experiments: Collection[str]) -> list[tuple[int, Action]]:
    query = select(actions).where(actions.c.experiment.in_(list(experiments))).order_by(actions.c.number)
    return [
        (int(row["number"]), Action(**{name: row[name] for name in Action.__slots__}))
        for row in db.execute(query).mappings()
    ]


def _append(db: Connection, action: Action) -> int:
    """Append an action and return its number; for a second start, that of the first."""
    if action.kind == "start":
        started = select(actions.c.number).where(
            actions.c.experiment == action.experiment, actions.c.kind == "start"
        )
        if (number := db.scalar(started)) is not None:
            return int(number)
    return int(db.execute(insert(actions).returning(actions.c.number), _values(action)).scalar_one())


def _delete(db: Connection, table: Table, which: ColumnElement[bool], limit: int) -> int:
    key = tuple_(*table.primary_key)
    chosen = select(*table.primary_key).where(which).limit(limit)
    return db.execute(delete(table).where(key.in_(chosen))).rowcount
