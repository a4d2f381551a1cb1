"""One database of experiments: its transactions, and the rows of its log. SQLAlchemy Core, no ORM.

All methods block, may be called from any thread, and raise DatabaseUnavailable if the database cannot be
reached. The first call that succeeds makes the tables, so that a store made while the database was down works
as soon as it is back.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson
from pydantic import ValidationError
from sqlalchemy import Connection, RowMapping, event, func, insert, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import database, facts, tables
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import values_of
from headroom.service.experiments.log import Declared, Entry
from headroom.version import version

logger = logging.getLogger("headroom.experiments")

_LOG_LOCK = 0x6C6F6700
_FACTS_LOCK = 0x66616374

Propose = Callable[[Sequence[Entry]], Entry | None]
"""Returns the row to add to the log, or None, from the rows that the caller does not know yet."""


class Store:
    """One database. Nothing is opened before the first call.

    url: sqlite:////path/file.db or postgresql://user:password@host/name. Default: `database.default_url()`.
    service: the name of the service that the database belongs to; None: whoever only reads.
    Raises ValueError for another kind of URL.
    """

    def __init__(self, url: str | None = None, service: str | None = database.DEFAULT_SERVICE) -> None:
        self.url = database.parse_url(url or database.default_url())
        self.service = service
        self._engine = database.connect(self.url)
        self._is_prepared = False
        self._preparing = threading.Lock()
        self.incompatible: str | None = None
        """Why this service cannot use the database, as a clause; None if it can, or has not asked it yet."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the reason each time the database fails. If it raises, that is logged."""

    def __repr__(self) -> str:
        return f"Store({self.url})"  # a URL hides its password

    def prepare(self) -> None:
        """Make the tables. Several replicas may do so at once."""
        with self._preparing:
            if not self._is_prepared:
                self._settle(database.prepare(self._engine, self.service))

    def check(self) -> None:
        """Raise DatabaseUnavailable if this service cannot use the tables any more, as after an upgrade."""
        with self.read() as db:
            self._settle(database.problem(db, self.service))

    def _settle(self, problem: str | None) -> None:
        """Raise DatabaseUnavailable if there is a problem, and have every further call look for it again."""
        self.incompatible = problem
        self._is_prepared = problem is None
        if problem is not None:
            raise DatabaseUnavailable(message=f"{problem[0].upper()}{problem[1:]}.")

    @property
    def is_file(self) -> bool:
        """Whether the database is a SQLite file, which replicas on other nodes do not see."""
        return self.url.drivername == "sqlite+pysqlite"

    @property
    def is_made(self) -> bool:
        """Whether there is a database. Only a SQLite file that nothing has written to is known to be none."""
        return database.is_made(self.url)

    def close(self) -> None:
        """Close the connections, and those in use once they are given back. A later call opens others."""
        event.listen(self._engine.pool, "checkin", _close_returned)
        self._engine.dispose()  # the engine has another pool from here on

    def log(self, after: int = 0) -> list[Entry]:
        """Return the rows of the log with a larger number than `after`, in their order."""
        with self.read() as db:
            return _read_log(db, after)

    def last_number(self) -> int:
        """Return the number of the log's last row; 0 if it has none."""
        with self.read() as db:
            return int(db.scalar(select(func.max(tables.log.c.number))) or 0)

    def append(self, propose: Propose | Entry, after: int = 0) -> list[Entry]:
        """Add a row to the log, and return the rows after `after` with it.

        Its time is the database's if that is earlier, because no later row counts from before it.
        propose: the row, or a function that is called in the transaction that adds it, with the rows after
            `after`. If it raises, nothing is added; nor if it returns None.
        """
        with self.write() as db:
            if database.is_postgresql(db):  # SQLite: writing transactions exclude each other
                db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOG_LOCK})")
            entries = _read_log(db, after)
            entry = propose if isinstance(propose, Entry) else propose(entries)
            if entry is None:
                return entries
            dated = replace(entry, time=min(entry.time, self.clock(db)))
            db.execute(insert(tables.log).values(_row_of(dated)))
            last = entries[-1].number if entries else after
            return [*entries, *_read_log(db, last)]

    def final_report(self, experiment: str) -> str | None:
        """Return the report that was made before an experiment's rows were deleted, JSON of `Report`."""
        log = tables.log
        query = select(log.c.report).where(log.c.experiment == experiment, log.c.kind == "delete")
        with self.read() as db:
            return db.scalar(query.order_by(log.c.number).limit(1))

    def add(self, rows: Sequence[facts.Fact]) -> Counter[tuple[str, str]]:
        """Add exposures, lists and shadow results, all or none.

        Returns how many units are new, by experiment and arm.
        """
        with self.write_facts() as db:
            return facts.add(db, rows)

    def unit_counts(self, experiments: Collection[str]) -> dict[str, Counter[str]]:
        """Return the exposed units by experiment and arm. The cost does not grow with the units."""
        counts = {experiment: Counter[str]() for experiment in experiments}
        table = tables.unit_counts
        query = select(table).where(table.c.experiment.in_(list(experiments)))
        with self.read() as db:
            for row in db.execute(query):
                counts[row.experiment][row.arm] = int(row.units)
        return counts

    def not_ahead(self, now: float) -> float:
        """Return a replica's time, or the database's if that is earlier, in Unix seconds.

        By it things become too old for all replicas, whose clocks differ.
        """
        with self.read() as db:
            return min(now, self.clock(db))

    def clock(self, db: Connection) -> float:
        """Return the database's time, in Unix seconds."""
        return db.scalars(select(tables.clock(db))).one()

    def read(self) -> AbstractContextManager[Connection]:
        """Return a transaction for queries of milliseconds."""
        return self._opened(database.transaction(self._engine, write=False))

    def read_all(self) -> AbstractContextManager[Connection]:
        """Return a transaction for queries of all rows of an experiment."""
        return self._opened(database.analysis(self._engine))

    def write(self) -> AbstractContextManager[Connection]:
        """Return a transaction that writes."""
        return self._opened(database.transaction(self._engine, write=True))

    @contextmanager
    def write_facts(self) -> Iterator[Connection]:
        """Open a transaction that adds facts, which `read_in_order` waits for."""
        with self.write() as db:
            if database.is_postgresql(db):
                db.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({_FACTS_LOCK})")
            yield db

    @contextmanager
    def read_in_order(self) -> Iterator[Connection]:
        """Open a transaction that sees all facts up to the largest number.

        PostgreSQL counts rows when they are added, and shows them when their transaction ends. So this one
        waits for those under way, and later rows have larger numbers.
        """
        with self.read() as db:
            if database.is_postgresql(db):
                db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_FACTS_LOCK})")
            yield db

    @contextmanager
    def _opened(self, transaction: AbstractContextManager[Connection]) -> Iterator[Connection]:
        """Open a transaction in a database that is prepared; tell `on_failure` if the database fails."""
        try:
            if not self._is_prepared:
                self.prepare()
            with transaction as db:
                yield db
        except DatabaseUnavailable as error:
            try:
                self.on_failure(database.reason_of(error))
            except Exception:  # callers must see that the database failed, not this
                logger.exception("a failure of the experiments' database could not be reported")
            raise


def _close_returned(_: Any, record: Any) -> None:
    """Close a connection that comes back to a pool that was closed meanwhile."""
    record.invalidate()


def _row_of(entry: Entry) -> dict[str, Any]:
    """Return a row of the log as the table has it."""
    row = values_of(entry)
    del row["number"]
    declared = entry.declared
    row["declared"] = None
    if declared is not None:
        parts = {
            "experiments": [config.model_dump(mode="json") for config in declared.experiments],
            "variants": None if declared.variants is None else dict(declared.variants),
            "definitions": dict(declared.definitions),
        }
        row["declared"] = orjson.dumps(parts).decode()
    return row | {"release": version()}


def _read_log(db: Connection, after: int) -> list[Entry]:
    columns = [column for column in tables.log.c if column is not tables.log.c.report]
    query = select(*columns).where(tables.log.c.number > after).order_by(tables.log.c.number)
    return [_entry_of(row) for row in db.execute(query).mappings()]


def _entry_of(row: RowMapping) -> Entry:
    """Return the row that the table holds."""
    values = {name: row[name] for name in Entry.__slots__ if name != "report"}
    if row["declared"] is not None:
        values["declared"] = _declared_of(row["declared"], row["release"])
    return Entry(**values)


@lru_cache(maxsize=32)
def _declared_of(text: str, release: str) -> Declared:
    """Return what a row declares. Restarts and edits often declare the same.

    An experiment that this release cannot read, because a later one wrote it, is left out.
    """
    parts = orjson.loads(text)
    configs = []
    for part in parts["experiments"]:
        try:
            configs.append(ExperimentConfig.model_validate_json(orjson.dumps(part)))
        except ValidationError:
            logger.error("release %s declared %r, which this one cannot read", release, part["name"])
    return Declared(tuple(configs), parts["variants"], parts["definitions"])
