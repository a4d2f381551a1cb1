"""The experiments' database: exposures, outcomes, shadow results and actions. SQLAlchemy Core, no ORM.

All methods block, may be called from any thread, and raise DatabaseUnavailable if the database cannot be
reached. The first call that succeeds makes the tables, so that a store made while the database was down works
as soon as it is back.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    event,
    insert,
    or_,
    select,
    update,
)

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import clicks, database, migration, tables, window_rows
from headroom.service.experiments.credit import tally
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.events import (
    Action,
    Exposure,
    Impression,
    Log,
    Outcome,
    OutcomeReceipt,
    SentClick,
    ShadowResult,
    Terms,
    UnknownOutcome,
    UnknownReason,
    values_of,
)
from headroom.service.experiments.preference import Tally
from headroom.service.experiments.tables import (
    actions,
    exposures,
    impressions,
    secrets,
    shadow_results,
    started_experiments,
    unit_counts,
)
from headroom.service.experiments.window_rows import WindowRow

logger = logging.getLogger("headroom.experiments")

CHUNK = 500
"""Rows per statement; both databases limit a statement's parameters."""

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

DELETED_AT_ONCE = 5_000
"""Rows of a table that one call of `delete_before` deletes, at most, so that no other write waits long."""

MAX_STARTED = 128
"""Experiments started without a file that replicas know: those not stopped first, then the latest."""

IMPRESSION_KEY = "impressions"
"""Name of the secret under which the ids of impressions are coded."""

KEY_BYTES = 32

TAKEN_BACK = "rollback of a ship: "
"""Begins the detail of a stop that takes a ship back."""

_OF_LIST = ("experiment", "id", "teams_by_index", "places", "ids")
_MARK_REUSED = (
    update(impressions)
    .where(
        impressions.c.experiment == bindparam("its_experiment"),
        impressions.c.id == bindparam("its_id"),
        or_(
            impressions.c.teams_by_index != bindparam("its_teams_by_index"),
            impressions.c.places != bindparam("its_places"),
            impressions.c.ids.is_distinct_from(bindparam("its_ids")),
        ),
    )
    .values(is_reused=1)
)
"""Marks the stored list of a query id if this one is another."""

_LOG_LOCK = 0x6163746E
_CLICKS_LOCK = 0x636C6963
_DELETION_LOCK = 0x64656C65

Decision = Callable[[Log, Sequence[ExperimentConfig]], Action | None]
"""Returns the action to record, or None, from a log and the experiments that were started without a file and
are not stopped."""


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
        self._impression_key: str | None = None
        self.incompatible: str | None = None
        """Why this release cannot use the database, as a clause; None if it can, or has not asked it yet."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the reason each time the database fails. If it raises, that is logged."""
        self.on_lost_clicks: Callable[[int], None] = lambda _: None
        """Called with the number of clicks before their list that will not count."""

    def __repr__(self) -> str:
        return f"Store({self.url})"  # a URL hides its password

    def prepare(self) -> None:
        """Make or extend the tables. Several replicas may do so at once."""
        with self._preparing:
            if not self._is_prepared:
                self._settle(database.prepare(self._engine))

    def check(self) -> None:
        """Raise DatabaseUnavailable if this release cannot use the tables any more, as after an upgrade."""
        with self.read() as db:
            self._settle(migration.problem(db))

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

    def impression_key(self) -> str:
        """Return the database's key, under which the ids of impressions are coded. It never changes."""
        if self._impression_key is None:
            value = select(secrets.c.value).where(secrets.c.name == IMPRESSION_KEY)
            with self.read() as db:
                key = db.scalar(value)
            if key is None:
                with self._write() as db:  # of replicas that do so at once, the first makes it
                    row = {"name": IMPRESSION_KEY, "value": token_hex(KEY_BYTES)}
                    db.execute(tables.insert_once(db, secrets).values(row))
                    key = db.execute(value).scalar_one()
            self._impression_key = str(key)
        return self._impression_key

    def close(self) -> None:
        """Close the connections, and those in use once they are given back. A later call opens others."""
        event.listen(self._engine.pool, "checkin", _close_returned)
        self._engine.dispose()  # the engine has another pool from here on

    def add_exposures(self, rows: Sequence[Exposure]) -> Counter[tuple[str, str]]:
        """Store the exposures of units that are new. Return how many are, by experiment and arm.

        Replicas write in no order, so a stored unit gets the time of an exposure that is earlier.
        """
        # Sorted, so that two replicas lock rows in the same order and cannot deadlock.
        values = sorted(map(values_of, rows), key=lambda row: (row["experiment"], row["unit"], row["time"]))
        new: Counter[tuple[str, str]] = Counter()
        known: list[dict[str, Any]] = []
        with self._write() as db:
            add = tables.insert_new(db, exposures).returning(*exposures.c)
            for chunk in tables.chunks(values, CHUNK):
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
            for chunk in tables.chunks(known, CHUNK):  # after all inserts, for the same reason
                db.execute(earlier, chunk)
            if new:
                counts = [
                    {"experiment": experiment, "arm": arm, "units": units}
                    for (experiment, arm), units in sorted(new.items())
                ]
                db.execute(tables.add_units(db), counts)
        return new

    def add_impressions(self, rows: Sequence[Impression]) -> int:
        """Store impressions. Return how many are new.

        Of several lists that a unit was shown under one query id, the first stays, and is marked as reused.
        """
        values = [
            values_of(row)
            | {
                "places": _json(row.places),
                "ids": None if row.ids is None else _json(row.ids),
            }
            for row in sorted(rows, key=lambda row: (row.experiment, row.id))  # no two calls can deadlock
        ]
        named = [row for row in values if row["query_id"] is not None]
        added = 0
        with self._write() as db:
            add = tables.insert_new(db, impressions).returning(impressions.c.id)
            for chunk in tables.chunks(values, CHUNK):
                added += len(db.execute(add, chunk).all())
            for chunk in tables.chunks(named, CHUNK):  # after all inserts, for the same reason
                db.execute(_MARK_REUSED, [{f"its_{name}": row[name] for name in _OF_LIST} for row in chunk])
        return added

    def add_shadow(self, rows: Sequence[ShadowResult]) -> None:
        """Store shadow results."""
        with self._write() as db:
            for chunk in tables.chunks([values_of(row) for row in rows], CHUNK):
                db.execute(insert(shadow_results), chunk)

    def record_outcomes(
        self,
        rows: Sequence[Outcome | SentClick],
        configs: Collection[ExperimentConfig],
        now: float | None = None,
        over: Collection[str] = (),
    ) -> OutcomeReceipt:
        """Store outcomes and clicks on interleaved lists.

        The same id again is a duplicate, whatever its other fields hold, and so is a second click on the same
        title of a list for the same metric.
        configs: the experiments of the live config. An outcome of another experiment, or of a metric that its
        experiment does not declare, is unknown and not stored. now: seconds since the epoch; None reads the
        clock. over: the experiments that show no more lists.
        """
        now = time.time() if now is None else now
        interleaving = [config for config in configs if config.kind == "interleave"]
        key = self.impression_key() if interleaving else ""
        sorted_rows = _sort_out(rows, configs, interleaving, key)
        unknown = list(sorted_rows.unknown)
        names: dict[str, str] = {}
        for chunk in tables.chunks(list(sorted_rows.strangers.items()), clicks.CHUNK):
            found = self._find_lists(dict(chunk), interleaving, key, now, over)
            unknown += found.unknown
            for number, click in found.clicks.items():
                sorted_rows.clicks[number] = click
                names[click.impression] = sorted_rows.strangers[number].impression
        duplicates = self._record_outcomes(sorted_rows.outcomes)
        for chunk in tables.chunks(sorted(sorted_rows.clicks.items()), clicks.CHUNK):
            recorded = self._record_clicks(dict(chunk), now, names)
            unknown += recorded.unknown
            duplicates += dict(chunk).keys() - recorded.new - {row.index for row in recorded.unknown}
        return OutcomeReceipt(
            accepted=len(rows) - len(duplicates) - len(unknown),
            duplicates=len(duplicates),
            unknown=len(unknown),
            unknown_outcomes=sorted(unknown, key=lambda row: row.index),
            duplicate_ids=[rows[number].id for number in sorted(duplicates)],
        )

    def preferences(
        self,
        config: ExperimentConfig,
        metric: Metric,
        end: float,
        now: float,
        until: float | None = None,
    ) -> Tally:
        """Return what the units of an interleaving experiment preferred, by a metric, as `tally` says.

        end, now: seconds since the epoch; end: inf while it runs.
        """
        if until is None:
            self.settle_early_clicks(self.not_ahead(now))
        with self.read_all() as db:
            return tally(db, config.name, metric, end, until)

    def _record_outcomes(self, outcomes: Mapping[int, Outcome]) -> list[int]:
        """Store outcomes by their number. Return the numbers of the duplicates."""
        duplicates: list[int] = []
        for chunk in tables.chunks(list(outcomes.items()), CHUNK):
            # The first counts.
            values = {(row.experiment, row.id): values_of(row) for _, row in reversed(chunk)}
            with self._write() as db:
                key = (tables.outcomes.c.experiment, tables.outcomes.c.id)
                statement = tables.insert_new(db, tables.outcomes).returning(*key)
                # Sorted, so that two calls cannot deadlock.
                new = {tuple(row) for row in db.execute(statement, [values[key] for key in sorted(values)])}
            for number, row in chunk:
                if (row.experiment, row.id) not in new:
                    duplicates.append(number)
                new.discard((row.experiment, row.id))  # the same again in this call is a duplicate, too
        return duplicates

    def _record_clicks(
        self, sent: Mapping[int, SentClick], now: float, names: Mapping[str, str]
    ) -> clicks.Recorded:
        with self._write_clicks() as db:
            recorded = clicks.record(db, sent, now, names)
        if recorded.crowded_out:
            self.on_lost_clicks(recorded.crowded_out)
        return recorded

    def _find_lists(
        self,
        strangers: Mapping[int, SentClick],
        interleaving: Sequence[ExperimentConfig],
        key: str,
        now: float,
        over: Collection[str],
    ) -> "_Found":
        """Find the lists of clicks that name no impression of their unit, but may name a query id.

        A click whose list is not stored is unknown. It is kept for a minute, in case the list is about to be.
        """
        by_name = {config.name: config for config in interleaving}
        candidates = {
            number: clicks.by_query_id(click, interleaving, key) for number, click in strangers.items()
        }
        with self.read() as db:
            stored = clicks.stored(db, {clicks.key_of(each) for some in candidates.values() for each in some})
            ids = {click.impression for click in strangers.values()}
            seen_by_others = clicks.owners(db, list(by_name), ids)
        found = _Found({}, [])
        early: dict[int, SentClick] = {}
        for number, click in strangers.items():
            is_others = click.impression in seen_by_others
            its_list = next((each for each in candidates[number] if clicks.key_of(each) in stored), None)
            may_come = [config for config in interleaving if config.name not in over]
            may_come = [config for config in may_come if clicks.has_slot(config, click.unit)]
            names_to_come = {config.name for config in may_come}
            expected = next((each for each in candidates[number] if each.experiment in names_to_come), None)
            named = None if is_others else its_list or expected
            problem = _problem_of_stranger(click, is_others)
            if named is not None:
                problem = _problem_of_metric(click.metric, by_name[str(named.experiment)]) or problem
                is_right = problem[0] != "metric"
                if is_right and its_list is not None:
                    found.clicks[number] = its_list
                    continue
                if is_right:
                    early[number] = named
            found.unknown.append(UnknownOutcome(number, click.id, *problem))
        self._hold(early, now)
        return found

    def _hold(self, early: Mapping[int, SentClick], now: float) -> None:
        if early:
            with self._write_clicks() as db:
                clicks.hold(db, early, now)

    def not_ahead(self, now: float) -> float:
        """Return a replica's time, or the database's if that is earlier, in Unix seconds.

        By it things become too old for all replicas, whose clocks differ.
        """
        with self.read() as db:
            return min(now, db.scalars(select(tables.clock(db))).one())

    def settle_early_clicks(self, now: float) -> None:
        """Let early clicks count whose impressions are stored by now, and drop those that waited too long.

        now: seconds since the epoch, as `not_ahead` returns them.
        """
        while True:
            with self.read() as db:
                if not clicks.is_due(db, now):
                    return
            with self._write_clicks() as db:
                settled, lost = clicks.settle(db, now)
            if lost:
                self.on_lost_clicks(lost)
            if not settled:  # another replica was faster
                return

    def delete_before(self, moment: float, not_over: Collection[str], now: float | None = None) -> bool:
        """Delete a portion of the impressions, clicks and outcomes from before a moment, in Unix seconds.

        Those of an experiment with a later action stay, because it ended later. The log says of which
        experiments some were deleted, so that nobody analyses the rest.
        not_over: further experiments whose rows stay. now: seconds since the epoch; None reads the clock.
        Return whether there may be more.
        """
        now = time.time() if now is None else now
        is_more = False
        by_people = actions.c.kind != "delete"
        lately = select(actions.c.experiment).where(actions.c.time >= moment, by_people)
        for table in (tables.impressions, tables.clicks, tables.outcomes):
            key = list(table.primary_key)
            is_old = and_(
                table.c.time < moment,
                table.c.experiment.not_in(sorted(not_over)),
                table.c.experiment.not_in(lately),
            )
            query = select(*key).where(is_old).limit(DELETED_AT_ONCE)
            with self.read_all() as db:
                keys = [dict(row._mapping) for row in db.execute(query)]
            if keys:
                self._delete(table, keys, now)
            is_more = is_more or len(keys) == DELETED_AT_ONCE
        return is_more

    def _delete(self, table: Table, keys: Sequence[Mapping[str, Any]], now: float) -> None:
        """Delete rows by their primary keys, unless another replica deletes some at present, and log it."""
        of_key = [column == bindparam(f"{column.name}_key") for column in table.primary_key]
        with self._write() as db:
            if not self._may_delete(db):
                return
            parameters = [{f"{name}_key": value for name, value in key.items()} for key in keys]
            db.execute(delete(table).where(*of_key), parameters)
            names = {key["experiment"] for key in keys}
            is_logged = and_(actions.c.kind == "delete", actions.c.experiment.in_(names))
            for name in sorted(names.difference(db.scalars(select(actions.c.experiment).where(is_logged)))):
                db.execute(insert(actions).values(_row_of(Action(name, "delete", now, "outcome_days"))))

    @staticmethod
    def _may_delete(db: Connection) -> bool:
        """Return whether no other transaction deletes rows, and keep it so until this one ends."""
        if not database.is_postgresql(db):  # SQLite: writing transactions exclude each other
            return True
        return bool(db.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_DELETION_LOCK})").scalar())

    def record_action(self, action: Action) -> bool:
        """Append to the log of actions, and return whether it was.

        An experiment starts once, and an arm is rolled back once: a second such action is left out.
        """

        def decide(log: Log, _: Sequence[ExperimentConfig]) -> Action | None:
            is_second = _happens_once(action) and any(
                (earlier.experiment, earlier.kind, earlier.arm)
                == (action.experiment, action.kind, action.arm)
                for earlier in log
            )
            return None if is_second else action

        return self.act([action.experiment], decide)[-1] is action

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
            db.execute(insert(actions).values(_row_of(action)))
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

        One that this release cannot read, because another release or no release wrote it, is missing.
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

    def exchange_windows(
        self, replica: str, rows: Sequence[WindowRow], experiments: Collection[str]
    ) -> list[WindowRow]:
        """Store a replica's windows in place of its earlier ones, and return what others stored lately."""
        with self._write() if rows else self.read() as db:
            if rows:
                window_rows.replace_own(db, rows)
            return window_rows.of_others(db, replica, experiments)

    def final_report(self, experiment: str) -> str | None:
        """Return the JSON that `keep_final_report` kept, or None."""
        reports = tables.final_reports
        with self.read() as db:
            return db.scalar(select(reports.c.report).where(reports.c.experiment == experiment))

    def keep_final_report(self, experiment: str, report: str) -> None:
        """Keep an experiment's report as JSON.

        Not if one is kept already, or a replica of an older release has begun to delete what it is made of.
        """
        is_deletion = and_(actions.c.kind == "delete", actions.c.experiment == experiment)
        with self._write() as db:
            if db.scalar(select(actions.c.number).where(is_deletion).limit(1)) is None:
                row = {"experiment": experiment, "report": report}
                db.execute(tables.insert_new(db, tables.final_reports).values(row))

    def delete_old_windows(self) -> None:
        """Delete the windows of replicas that are gone, unless another replica deletes some rows now."""
        with self._write() as db:
            if self._may_delete(db):
                window_rows.delete_old(db)

    def read(self) -> AbstractContextManager[Connection]:
        """Return a transaction for queries of milliseconds."""
        return self._opened(database.transaction(self._engine, write=False))

    def read_all(self) -> AbstractContextManager[Connection]:
        """Return a transaction for queries of all rows of an experiment."""
        return self._opened(database.analysis(self._engine))

    def _write(self) -> AbstractContextManager[Connection]:
        return self._opened(database.transaction(self._engine, write=True))

    @contextmanager
    def _write_clicks(self) -> Iterator[Connection]:
        """Open a transaction that may move early clicks, one at a time: two could deadlock."""
        with self._write() as db:
            if database.is_postgresql(db):  # SQLite: writing transactions exclude each other
                db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CLICKS_LOCK})")
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


def _happens_once(action: Action) -> bool:
    """Return whether an experiment's log has such an action of the same arm at most once."""
    return action.kind == "start" or (action.kind == "rollback" and action.arm is not None)


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return orjson.dumps(values).decode()


def _read_log(db: Connection, experiments: Collection[str]) -> list[Action]:
    columns = [actions.c[name] for name in Action.__slots__]
    query = select(*columns).where(actions.c.experiment.in_(list(experiments))).order_by(actions.c.number)
    return [_action_of(row._asdict()) for row in db.execute(query)]


def _row_of(action: Action) -> dict[str, Any]:
    """Return an action as the table has it.

    Release 0.2 does not know a rollback of a ship, and would go on shipping. So the table has a stop.
    """
    row = values_of(action)
    if action.kind == "rollback" and action.arm is None:
        row["kind"] = "stop"
        row["detail"] = f"{TAKEN_BACK}{action.detail}"
    if action.terms is not None:
        row["terms"] = orjson.dumps(action.terms).decode()
    return row


def _action_of(row: Mapping[str, Any]) -> Action:
    """Return the action that a row of the table holds. What a later release adds to terms is left out."""
    values = dict(row)
    if row["kind"] == "stop" and row["detail"].startswith(TAKEN_BACK):
        values["kind"] = "rollback"
        values["detail"] = row["detail"].removeprefix(TAKEN_BACK)
    if row["terms"] is not None:
        stored = orjson.loads(row["terms"])
        known = {name: stored[name] for name in Terms.__slots__}
        values["terms"] = Terms(**known | {"slots": tuple(stored["slots"])})
    return Action(**values)


def _read_definitions(db: Connection, where: ColumnElement[bool]) -> list[ExperimentConfig]:
    """Return the experiments of the rows that a condition selects, oldest first."""
    definitions = []
    query = select(started_experiments).where(where).order_by(started_experiments.c.number)
    for row in db.execute(query.limit(MAX_STARTED)):
        try:
            config = ExperimentConfig.model_validate_json(row.definition)
        except ValidationError:
            logger.debug("this release cannot read the experiment %s", row.name)
            continue
        if config.name == row.name:
            definitions.append(config)
    return definitions


class _Sorted(NamedTuple):
    """Outcomes and clicks by their number in the request, and those that are unknown.

    clicks: on impressions that their unit saw, each with its experiment. strangers: on any other impression.
    """

    outcomes: dict[int, Outcome]
    clicks: dict[int, SentClick]
    strangers: dict[int, SentClick]
    unknown: list[UnknownOutcome]


class _Found(NamedTuple):
    """Clicks by query ids whose list is stored, by their number, with its impression; and the others."""

    clicks: dict[int, SentClick]
    unknown: list[UnknownOutcome]


def _sort_out(
    rows: Sequence[Outcome | SentClick],
    configs: Collection[ExperimentConfig],
    interleaving: Sequence[ExperimentConfig],
    key: str,
) -> _Sorted:
    """Sort rows by what they are.

    configs: the known experiments; one without metrics takes any. interleaving: those that interleave.
    key: that of impressions.
    """
    by_name = {config.name: config for config in configs}
    parts = _Sorted({}, {}, {}, [])
    for number, row in enumerate(rows):
        problem: _Problem | None
        if isinstance(row, Outcome):
            problem = _problem_of_outcome(row, by_name)
            if problem is None:
                parts.outcomes[number] = row
        else:
            problem = _problem_of_click(row, by_name)
            if problem is None and (name := clicks.experiment_of(row, interleaving, key)) is None:
                parts.strangers[number] = row
            elif problem is None and (problem := _problem_of_metric(row.metric, by_name[str(name)])) is None:
                parts.clicks[number] = replace(row, experiment=name)
        if problem is not None:
            parts.unknown.append(UnknownOutcome(number, row.id, *problem))
    return parts


_Problem = tuple[UnknownReason, str]
"""Why an outcome is not stored, for a program and for people."""


def _problem_of_outcome(row: Outcome, by_name: Mapping[str, ExperimentConfig]) -> _Problem | None:
    config = by_name.get(row.experiment)
    if config is None:
        return "experiment", f"there is no experiment {row.experiment!r}"
    if config.kind == "interleave":
        return "impression", f"{row.experiment!r} interleaves: send the `impression` and the clicked `index`"
    return _problem_of_metric(row.metric, config)


def _problem_of_click(row: SentClick, by_name: Mapping[str, ExperimentConfig]) -> _Problem | None:
    """Return what is wrong with a click, whatever its impression is."""
    if row.experiment is not None:
        config = by_name.get(row.experiment)
        if config is None:
            return "experiment", f"there is no experiment {row.experiment!r}"
        if config.kind != "interleave":
            return "impression", f"{row.experiment!r} does not interleave: leave `impression` and `index` out"
    if not row.impression:
        return "impression", "query_id is missing; it is the `impression` of the list"
    if not row.unit:
        return "unit", "client_id is missing; it is the `unit` of the request"
    if row.index is None and row.rank is None and row.object_id is None:
        return (
            "index",
            "the event has neither position.ordinal nor object.object_id, which say what was clicked",
        )
    if row.index is None and row.object_id is None and row.rank is not None and row.rank < 1:
        return "index", f"rank {row.rank} was not shown; ranks count from 1"
    if row.value <= 0:
        return "value", f"value {row.value:g} is no click; send clicks only, with a value above 0"
    return None


def _problem_of_stranger(click: SentClick, is_others: bool) -> _Problem:
    """Say that a click is on no stored list of its unit. is_others: whether it is on another unit's."""
    if is_others:
        return "unit", f"impression {click.impression!r} is not one of the unit {click.unit!r}"
    return "impression", f"there is no impression {click.impression!r} of the unit {click.unit!r}"


def _problem_of_metric(metric: str, config: ExperimentConfig) -> _Problem | None:
    declared = {source for each in config.metrics for source in each.sources}
    if not declared or metric in declared:
        return None
    names = ", ".join(sorted(declared)[:MAX_LISTED])
    if len(declared) > MAX_LISTED:
        names += ", …"
    return "metric", f"{config.name!r} has no metric {metric!r}; it has {names}"
