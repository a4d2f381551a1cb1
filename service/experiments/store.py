"""The experiments' database: exposures, outcomes, shadow results and actions. SQLAlchemy Core, no ORM.

All methods block, may be called from any thread, and raise DatabaseUnavailable if the database cannot be
reached. The first call that succeeds makes the tables, so that a store made while the database was down works
as soon as it is back.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, insert, select, update

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import database, tables
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import (
    Action,
    Exposure,
    Log,
    Outcome,
    OutcomeReceipt,
    ShadowResult,
    UnknownOutcome,
    values_of,
)
from headroom.service.experiments.tables import (
    actions,
    exposures,
    shadow_results,
    started_experiments,
    unit_counts,
)

logger = logging.getLogger("headroom.experiments")

CHUNK = 500
"""Rows per statement; both databases limit a statement's parameters."""

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

MAX_STARTED = 128
"""Experiments started without a file that replicas know: those not stopped first, then the latest."""

_LOG_LOCK = 0x6163746E

Decision = Callable[[Log, Sequence[ExperimentConfig]], Action | None]
"""Returns the action to record, or None, from a log and the experiments that were started without a file and
are not stopped."""

T = TypeVar("T")


class Store:
    """One database. Nothing is opened before the first call.

    url: sqlite:////path/file.db or postgresql://user:password@host/name. Default: `database.default_url()`.
    Raises ValueError for another kind of URL.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = database.parse_url(url or database.default_url())
        self._engine = database.connect(self.url)
        self._is_prepared = False
        self._preparing = threading.Lock()
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the reason each time the database fails. If it raises, that is logged."""

    def __repr__(self) -> str:
        return f"Store({self.url})"  # a URL hides its password

    def prepare(self) -> None:
        """Make the tables if there are none. Several replicas may do so at once."""
        with self._preparing:
            if not self._is_prepared:
                database.prepare(self._engine)
                self._is_prepared = True

    @property
    def is_made(self) -> bool:
        """Whether there is a database. Only a SQLite file that nothing has written to is known to be none."""
        return database.is_made(self.url)

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        self._engine.dispose()

    def add_exposures(self, rows: Sequence[Exposure]) -> int:
        """Store the exposures of units that are new. Return how many are.

        Replicas write in no order, so a stored unit gets the time of an exposure that is earlier.
        """
        # Sorted, so that two replicas lock rows in the same order and cannot deadlock.
        values = sorted(map(values_of, rows), key=lambda row: (row["experiment"], row["unit"], row["time"]))
        new: Counter[tuple[str, str]] = Counter()
        known: list[dict[str, Any]] = []
        with self._write() as db:
            add = tables.insert_new(db, exposures).returning(*exposures.c)
            for chunk in _chunks(values):
                added = set()
                for row in db.execute(add, chunk):
                    added.add((row.experiment, row.unit))
                    new[row.experiment, row.arm] += 1
                known += [row for row in chunk if (row["experiment"], row["unit"]) not in added]
            earlier = tables.insert(db, exposures)
            earlier = earlier.on_conflict_do_update(
                index_elements=list(exposures.primary_key),
                set_={"time": earlier.excluded.time},
                where=earlier.excluded.time < exposures.c.time,
            )
            for chunk in _chunks(known):  # after all inserts, for the same reason
                db.execute(earlier, chunk)
            if new:
                counts = [
                    {"experiment": experiment, "arm": arm, "units": units}
                    for (experiment, arm), units in sorted(new.items())
                ]
                db.execute(tables.add_units(db), counts)
        return new.total()

    def add_shadow(self, rows: Sequence[ShadowResult]) -> None:
        """Store shadow results."""
        with self._write() as db:
            for chunk in _chunks([values_of(row) for row in rows]):
                db.execute(insert(shadow_results), chunk)

    def record_outcomes(
        self, rows: Sequence[Outcome], configs: Collection[ExperimentConfig]
    ) -> OutcomeReceipt:
        """Store outcomes. The same id again is a duplicate, whatever its other fields hold.

        configs: the experiments of the live config. An outcome of another experiment, or of a metric that its
        experiment does not declare, is unknown and not stored.
        """
        known, unknown = _sort_out(rows, configs)
        duplicates: list[str] = []
        for chunk in _chunks(known):
            values = {(row.experiment, row.id): values_of(row) for row in reversed(chunk)}  # the first counts
            with self._write() as db:
                key = (tables.outcomes.c.experiment, tables.outcomes.c.id)
                statement = tables.insert_new(db, tables.outcomes).returning(*key)
                # Sorted, so that two calls cannot deadlock.
                new = {tuple(row) for row in db.execute(statement, [values[key] for key in sorted(values)])}
            for row in chunk:
                if (row.experiment, row.id) not in new:
                    duplicates.append(row.id)
                new.discard((row.experiment, row.id))  # the same again in this call is a duplicate, too
        return OutcomeReceipt(
            accepted=len(known) - len(duplicates),
            duplicates=len(duplicates),
            unknown=len(unknown),
            unknown_outcomes=unknown,
            duplicate_ids=duplicates,
        )

    def record_action(self, action: Action) -> None:
        """Append to the log of actions. An experiment starts once, so a second start is left out."""

        def decide(log: Log, _: Sequence[ExperimentConfig]) -> Action | None:
            is_second = action.kind == "start" and any(
                (earlier.experiment, earlier.kind) == (action.experiment, "start") for earlier in log
            )
            return None if is_second else action

        self.act([action.experiment], decide)

    def act(
        self, experiments: Collection[str], decide: Decision, *, new: ExperimentConfig | None = None
    ) -> list[Action]:
        """Append what `decide` makes of a log, in one transaction, and return the new log.

        The log is that of `experiments` and of those that were started without a file and are not stopped.
        new: an experiment to hold from now on, whose start `decide` returns.
        If `decide` raises, nothing is recorded.
        """
        with self._write() as db:
            if database.is_postgresql(db):  # SQLite: writing transactions exclude each other
                db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOG_LOCK})")
            started = _read_definitions(db, started_experiments.c.ended.is_(None))
            log = _read_log(db, {*experiments, *(config.name for config in started)})
            action = decide(log, started)
            if action is None:
                return log
            if new is not None:
                db.execute(
                    insert(started_experiments).values(name=new.name, definition=new.model_dump_json())
                )
            db.execute(insert(actions).values(values_of(action)))
            if action.kind == "ship" or action.ends_experiment:
                ended = None if action.kind == "ship" else action.time
                its_row = started_experiments.c.name == action.experiment
                db.execute(update(started_experiments).where(its_row).values(ended=ended))
            return [*log, action]

    def started_names(self) -> list[str]:
        """Return the experiments that were started without a file, in order, as MAX_STARTED says."""
        table = started_experiments.c
        newest = select(table.name, table.number).order_by(table.ended.is_not(None), table.number.desc())
        with self.read() as db:
            rows = db.execute(newest.limit(MAX_STARTED)).all()
        return [row.name for row in sorted(rows, key=lambda row: row.number)]

    def definitions(self, names: Collection[str]) -> list[ExperimentConfig]:
        """Return these of the experiments that were started without a file.

        One that another release wrote, and that this one cannot read, is missing.
        """
        with self.read() as db:
            return _read_definitions(db, started_experiments.c.name.in_(list(names)))

    def actions(self, experiments: Collection[str]) -> list[Action]:
        """Return all actions on these experiments, in their order."""
        with self.read() as db:
            return _read_log(db, experiments)

    def unit_counts(self, experiments: Collection[str]) -> dict[str, Counter[str]]:
        """Return the exposed units by experiment and arm. The cost does not grow with the units."""
        counts = {experiment: Counter[str]() for experiment in experiments}
        query = select(unit_counts).where(unit_counts.c.experiment.in_(list(experiments)))
        with self.read() as db:
            for row in db.execute(query):
                counts[row.experiment][row.arm] = int(row.units)
        return counts

    def read(self, *, seconds: int = database.STATEMENT_S) -> AbstractContextManager[Connection]:
        """Return a transaction for queries. seconds: limit of one statement (PostgreSQL)."""
        return self._transaction(write=False, seconds=seconds)

    def _write(self) -> AbstractContextManager[Connection]:
        return self._transaction(write=True, seconds=database.STATEMENT_S)

    @contextmanager
    def _transaction(self, *, write: bool, seconds: int) -> Iterator[Connection]:
        try:
            if not self._is_prepared:
                self.prepare()
            with database.transaction(self._engine, write=write, seconds=seconds) as db:
                yield db
        except DatabaseUnavailable as error:
            try:
                self.on_failure(database.reason_of(error))
            except Exception:  # callers must see that the database failed, not this
                logger.exception("a failure of the experiments' database could not be reported")
            raise


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the rows in lists that fit into one statement."""
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _read_log(db: Connection, experiments: Collection[str]) -> list[Action]:
    columns = [actions.c[name] for name in Action.__slots__]
    query = select(*columns).where(actions.c.experiment.in_(list(experiments))).order_by(actions.c.number)
    return [Action(*row) for row in db.execute(query)]


def _read_definitions(db: Connection, where: ColumnElement[bool]) -> list[ExperimentConfig]:
    """Return the experiments of the rows that a condition selects, oldest first."""
    definitions = []
    query = select(started_experiments).where(where).order_by(started_experiments.c.number)
    for row in db.execute(query.limit(MAX_STARTED)):
        try:
            definitions.append(ExperimentConfig.model_validate_json(row.definition))
        except ValidationError:
            logger.debug("this release cannot read the experiment %s", row.name)
    return definitions


def _sort_out(
    rows: Sequence[Outcome], configs: Collection[ExperimentConfig]
) -> tuple[list[Outcome], list[UnknownOutcome]]:
    """Return the outcomes of known experiments and metrics, and those of unknown ones.

    configs: the known experiments; one without metrics takes any.
    """
    known: list[Outcome] = []
    unknown: list[UnknownOutcome] = []
    sources = {
        config.name: {source for metric in config.metrics for source in metric.sources} for config in configs
    }
    for index, row in enumerate(rows):
        declared = sources.get(row.experiment)
        if declared is None:
            message = f"there is no experiment {row.experiment!r}"
            unknown.append(UnknownOutcome(index, row.id, "experiment", message))
        elif declared and row.metric not in declared:
            names = ", ".join(sorted(declared)[:MAX_LISTED])
            if len(declared) > MAX_LISTED:
                names += ", …"
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {names}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append(row)
    return known, unknown
