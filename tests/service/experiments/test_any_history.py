"""Whatever happens in whatever order, a report is that of the plain model in reference.py.

The rules start, edit and kill two replicas, take the database away in the middle of their work, set clocks
back, and send outcomes, lists and clicks before, with and after each other. By hand, two hours for
HISTORIES=2000: the common runs have few.
"""

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import Connection

from headroom.service.errors import DatabaseUnavailable, ServiceError
from headroom.service.experiments import rules
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import NO_BUCKET, bucket
from headroom.service.experiments.definition import LAYER_SALT
from headroom.service.experiments.events import Click, Exposure, Impression, Outcome
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.log import Entry, World, fold
from headroom.service.experiments.outcomes import record
from headroom.service.experiments.retention import Retention
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics
from tests.service.experiments import reference
from tests.service.experiments.comparing import (
    CONFIGS,
    FILES,
    FREE,
    HOUR,
    READERS,
    UNITS,
    declaration,
    facts_of,
    plain,
    rounded,
    summary,
)

START = 1_000_000.0
KEPT_DAYS = 1.0
NEVER = 10**9


QUERIES = ["q1", "q2", None]


HAPPENING = ("start", "ramp", "stop", "ship", "rollback", "delete", "outage")

COUNTED: Counter[str] = Counter()
"""The histories in which something happened: a kind of row of the log, or an outage."""

DIRECTORY = tempfile.TemporaryDirectory()
COPY = Path(DIRECTORY.name) / "copy.db"
"""Reports are made of a copy by one store, since each store compiles its statements anew."""


@cache
def _reader() -> Store:
    store = Store(f"sqlite:///{COPY}")
    store.prepare()
    return store


@cache
def _template() -> bytes:
    """An empty database, which takes longer to make than to copy."""
    _reader()
    with closing(sqlite3.connect(COPY)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return COPY.read_bytes()


@dataclass
class Outside:
    """What replicas share: the true time, and how many transactions succeed before the database is away.

    refused: how many did not succeed.
    """

    now: float = START
    left: int = NEVER
    refused: int = 0

    def __call__(self) -> float:
        return self.now


class FailingStore(Store):
    """A store whose database may be away. Its clock is right."""

    def __init__(self, path: Path, outside: Outside) -> None:
        super().__init__(f"sqlite:///{path}")
        self.outside = outside

    def _ask(self) -> None:
        if self.outside.left <= 0:
            self.outside.refused += 1
            raise DatabaseUnavailable(message="away")
        self.outside.left -= 1

    def read(self) -> AbstractContextManager[Connection]:
        self._ask()
        return super().read()

    def read_all(self) -> AbstractContextManager[Connection]:
        self._ask()
        return super().read_all()

    def write(self) -> AbstractContextManager[Connection]:
        self._ask()
        return super().write()

    def not_ahead(self, now: float) -> float:
        self._ask()
        return min(now, self.outside.now)


@dataclass
class Replica:
    """A replica, its clock's error in seconds, and the rows that it has not written yet."""

    ledger: Ledger
    skew: float = 0.0
    rows: list[Exposure | Impression] = field(default_factory=list)


SECONDS = st.sampled_from([-2 * HOUR, -60.0, -1.0, -0.5, 0.0, 0.0, 0.0, 0.25, 60.0, 60.0, HOUR])
NUMBERS = st.integers(0, 1)
OFTEN = st.sampled_from([True, True, True, False])
INDICES = st.integers(0, 3)
"""Of the experiments to which an act can be done."""

LEFT = st.sampled_from([NEVER] * 6 + [0, 1, 2, 4, 8])
"""Transactions that succeed before the database is away."""


@st.composite
def _clicks(draw: st.DrawFn) -> dict[str, Any]:
    """What a click names. Most are on the list of a unit that may have been shown one."""
    reader = draw(st.sampled_from(READERS))
    return {
        "experiment": draw(st.sampled_from(["order", "order", ""])),
        "unit": draw(st.sampled_from([reader, reader, reader, reader, READERS[0]])),
        "metric": draw(st.sampled_from(["click", "buy"])),
        "list_id": draw(st.sampled_from([f"{reader}-q1", f"{reader}-q2", "q1", "q2", "nowhere"])),
        "index": draw(INDICES),
    }


CLICKS = _clicks()


def one_of(**acts: dict[str, Any]) -> Any:
    """Any of some acts of `Histories`, with the arguments of one. acts: strategies of its arguments."""
    return st.one_of([st.tuples(st.just(name), st.fixed_dictionaries(args)) for name, args in acts.items()])


ACTIONS: Any = st.sampled_from(
    [
        {"kind": "stop"},
        {"kind": "rollback"},
        *({"kind": "ramp", "traffic": traffic} for traffic in (0.0, 0.4, 1.0)),
        *({"kind": "ship", "arm": arm} for arm in ("control", "a", "b")),
    ]
)
"""What a person may do."""

OPERATORS = one_of(
    start={"number": NUMBERS, "file": st.sampled_from(sorted(FILES))},
    kill={"number": NUMBERS},
    edit={
        "number": NUMBERS,
        "file": st.sampled_from(sorted(FILES)),
        "may_start": st.sampled_from([True, True, False]),
    },
    start_over_http={"number": NUMBERS},
    operate={"number": NUMBERS, "index": INDICES, "act": ACTIONS},
    guardrail={"number": NUMBERS, "index": INDICES, "arm": st.sampled_from(["a", "b"])},
)
AROUND = one_of(
    refresh={"number": NUMBERS},
    wait={"seconds": st.sampled_from([0.5, 1.0, 60.0, HOUR, 5 * HOUR]), "is_back": st.booleans()},
    step_clock={"number": NUMBERS, "seconds": st.sampled_from([-2 * HOUR, -1.0, 0.0, 2 * HOUR])},
    delete={"number": NUMBERS, "days": st.sampled_from([0.0, 0.5, 1.5])},
)
CALLERS = one_of(
    request={
        "number": NUMBERS,
        "first": st.integers(0, len(UNITS) - 1),
        "count": st.integers(8, len(UNITS)),
        "is_written": OFTEN,
    },
    show={
        "number": NUMBERS,
        "units": st.lists(st.sampled_from(READERS), min_size=1, max_size=6),
        "is_written": OFTEN,
        "query": st.sampled_from(QUERIES),
    },
    choose={"number": NUMBERS, "unit": st.sampled_from(UNITS), "arm": st.sampled_from(["control", "a", "b"])},
    write={"number": NUMBERS},
    outcome={
        "number": NUMBERS,
        "name": st.sampled_from(["prune", "prune", "free", "taker"]),
        "metrics": st.lists(st.sampled_from(["click", "buy", "rate"]), min_size=1, unique=True),
        "first": st.integers(0, len(UNITS) - 1),
        "count": st.integers(4, len(UNITS)),
        "value": st.integers(0, 3),
        "seconds": SECONDS,
    },
    click={"number": NUMBERS, "clicks": st.lists(CLICKS, min_size=1, max_size=8), "seconds": SECONDS},
)

ACTS = st.lists(CALLERS, min_size=1, max_size=4)


class Histories(RuleBasedStateMachine):
    """Two replicas, one database, and callers."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "experiments.db"
        self.path.write_bytes(_template())
        self.outside = Outside()
        self.metrics = Metrics()
        self.replicas: dict[int, Replica] = {}
        self.number = 0
        self.sent: dict[str, reference.Row] = {}  # what the database took, by id
        self.exposed: dict[tuple[str, str, str], tuple[float, int]] = {}
        self.log: list[Entry] = []
        self.deleted: dict[str, reference.Row] = {}  # the last report of experiments whose rows may go

    @initialize(file=st.sampled_from(["right", "right", "right", "both", "taken", "less"]))
    def begin(self, file: str) -> None:
        self.start(0, file)
        self.request(0, 0, len(UNITS), is_written=True)
        self.show(0, READERS, True, "q1")

    def teardown(self) -> None:
        try:
            self.look()
            self.count()
        finally:
            for number in list(self.replicas):
                self.kill(number)
            shutil.rmtree(self.directory)

    def count(self) -> None:
        """Count what happened in this history."""
        happened: set[str] = {entry.kind for entry in self.log}
        if self.outside.refused:
            happened.add("outage")
        COUNTED.update(["history", *sorted(happened)])

    def next_id(self) -> str:
        self.number += 1
        return f"n{self.number}"

    def clock_of(self, number: int) -> float:
        replica = self.replicas.get(number)
        return self.outside.now + (0.0 if replica is None else replica.skew)

    def live(self, number: int) -> int:
        """A replica that runs: this one, or else the other. If none does, this one is started."""
        if not self.replicas:
            self.start(number, "right")
        return number if number in self.replicas else 1 - number

    @rule(acts=st.lists(OPERATORS, min_size=1, max_size=3), left=LEFT)
    def operators(self, acts: list[tuple[str, dict[str, Any]]], left: int) -> None:
        self.outside.left = left
        for act in acts:
            self.do(act)

    @rule(number=NUMBERS, index=INDICES, arm=st.sampled_from([None, "a", "b"]), acts=ACTS, left=LEFT)
    def end(self, number: int, index: int, arm: str | None, acts: list[Any], left: int) -> None:
        """Stop or ship an experiment, and let more than `outcome_days` go by."""
        self.operate(number, index, {"kind": "stop"} if arm is None else {"kind": "ship", "arm": arm})
        for act in acts:
            self.do(act)
        self.outside.left = left
        self.delete(number, 1.5)

    @rule(act=AROUND)
    def around(self, act: tuple[str, dict[str, Any]]) -> None:
        self.do(act)

    @rule(acts=ACTS)
    def callers(self, acts: list[tuple[str, dict[str, Any]]]) -> None:
        for act in acts:
            self.do(act)

    def do(self, act: tuple[str, dict[str, Any]]) -> None:
        name, arguments = act
        getattr(self, name)(**arguments)

    # What operators do.

    def start(self, number: int, file: str) -> None:
        """Start a replica, or kill and restart it, with a file."""
        self.kill(number)
        store = FailingStore(self.path, self.outside)
        ledger = Ledger(store, self.metrics, clock=lambda: self.clock_of(number), monotonic=self.outside)
        self.replicas[number] = Replica(ledger)
        self.edit(number, file)

    def kill(self, number: int) -> None:
        replica = self.replicas.pop(number, None)
        if replica is not None:
            replica.ledger.store.close()

    def edit(self, number: int, file: str, may_start: bool = True) -> None:
        number = self.live(number)
        with suppress(ValueError):  # the edit is refused
            self.replicas[number].ledger.apply(declaration(file), file, may_start=may_start)

    def start_over_http(self, number: int) -> None:
        number = self.live(number)

        def decide(world: World) -> Entry:
            rules.check_start(FREE, world)
            ledger = self.replicas[number].ledger
            started = replace(ledger.declared, experiments=(FREE,))
            return Entry("start", ledger.clock(), actor="boss", experiment="free", declared=started)

        self.act(number, decide)

    def operate(self, number: int, index: int, act: dict[str, Any]) -> None:
        number = self.live(number)
        name = self.name_of(number, index, is_shipped=act["kind"] == "rollback")

        def decide(world: World) -> Entry:
            entry = Entry(time=self.clock_of(number), actor="boss", experiment=name, **act)
            rules.check_action(entry, world)
            return entry

        self.act(number, decide)

    def name_of(self, number: int, index: int, *, is_shipped: bool = False) -> str:
        """One of the experiments that run, or have shipped, as a replica knows them; if none, any."""
        known = self.replicas[number].ledger.in_force.experiments.items()
        fitting = [
            name for name, each in known if (each.shipped is not None if is_shipped else each.is_running)
        ]
        names = fitting or [config.name for config in CONFIGS]
        return names[index % len(names)]

    def act(self, number: int, decide: Any) -> None:
        number = self.live(number)
        with suppress(KeyError, ServiceError):  # it is not there, refused, or the database is away
            self.replicas[number].ledger.act(decide)

    def guardrail(self, number: int, index: int, arm: str) -> None:
        number = self.live(number)
        name = self.name_of(number, index)
        entry = Entry("rollback", self.clock_of(number), "guardrail", name, arm=arm, detail=self.next_id())
        self.replicas[number].ledger.roll_back(entry)

    # What goes on around them.

    def refresh(self, number: int) -> None:
        number = self.live(number)
        self.replicas[number].ledger.refresh()

    def wait(self, seconds: float, is_back: bool) -> None:
        self.outside.now += seconds
        if is_back:
            self.outside.left = NEVER

    def step_clock(self, number: int, seconds: float) -> None:
        number = self.live(number)
        self.replicas[number].skew = seconds

    def delete(self, number: int, days: float) -> None:
        """Let a replica look for rows that are too old."""
        self.outside.now += days * 24 * HOUR
        number = self.live(number)
        ledger = self.replicas[number].ledger
        ledger.refresh()
        log = self.rows_of_log()
        facts = facts_of(self.read)
        before = {name for name, each in self.in_log().items() if each.deleted is None}
        reports = {
            name: reference.report(log, facts, name, self.clock_of(number))
            for name in before
            if not ledger.is_down
        }
        retention = Retention(ledger, KEPT_DAYS)
        with suppress(DatabaseUnavailable):
            for _ in range(3):
                retention.look()
        for name, each in self.in_log().items():
            if name in before and each.deleted is not None:
                self.deleted[name] = reports[name]

    # What callers do.

    def request(self, number: int, first: int, count: int, is_written: bool) -> None:
        """Ask for units, which get their arm."""
        number = self.live(number)
        ledger = self.replicas[number].ledger
        assigner = ledger.in_force.assigner
        for unit in (UNITS * 2)[first : first + count]:
            assigned = assigner.assign(unit)
            if assigned is not None and assigned.interleaved is None:
                self.expose(number, assigned.experiment, unit, assigned.arm, assigned.bucket)
        if is_written:
            self.write(number)

    def show(self, number: int, units: list[str], is_written: bool, query: str | None) -> None:
        """Ask for interleaved lists."""
        number = self.live(number)
        ledger = self.replicas[number].ledger
        time = self.clock_of(number)
        for unit in units:
            assigned = ledger.in_force.assigner.assign(unit)
            if assigned is None or assigned.interleaved is None:
                continue
            self.expose(number, "order", unit, assigned.arm, assigned.bucket)
            name = self.next_id() if query is None else f"{unit}-{query}"
            row = Impression("order", name, unit, time, "", "tcs-", (2, 0, 1), query_id=query)
            self.replicas[number].rows.append(row)
        if is_written:
            self.write(number)

    def choose(self, number: int, unit: str, arm: str) -> None:
        """Ask for a unit whose arm the caller chose."""
        number = self.live(number)
        ledger = self.replicas[number].ledger
        with suppress(ServiceError):
            assigned = ledger.in_force.assigner.choose(unit, arm, "prune")
            if assigned is not None:
                self.expose(number, "prune", unit, arm, NO_BUCKET)

    def expose(self, number: int, experiment: str, unit: str, arm: str, position: int) -> None:
        slot = None if position == NO_BUCKET else bucket(LAYER_SALT, unit)
        row = Exposure(experiment, unit, arm, position, self.clock_of(number), "", slot)
        self.replicas[number].rows.append(row)

    def write(self, number: int) -> None:
        """Let a replica write its rows."""
        number = self.live(number)
        replica = self.replicas[number]
        with suppress(DatabaseUnavailable):
            lists = [row for row in replica.rows if isinstance(row, Impression)]
            exposures = [row for row in replica.rows if isinstance(row, Exposure)]
            replica.ledger.store.add(lists)
            replica.ledger.store.add(exposures)
            replica.rows = []
            for row in exposures:
                key = row.experiment, row.unit, row.arm
                at = row.time, row.bucket
                self.exposed[key] = min(at, self.exposed.get(key, at))

    def outcome(
        self, number: int, name: str, metrics: list[str], first: int, count: int, value: int, seconds: float
    ) -> None:
        time = self.outside.now + seconds
        units = (UNITS * 2)[first : first + count]
        rows = [
            Outcome(name, self.next_id(), unit, metric, float((value + index) % 4), time)
            for index, unit in enumerate(units)
            for metric in metrics
        ]
        self.send(number, rows)

    def click(self, number: int, clicks: list[dict[str, Any]], seconds: float) -> None:
        """Click on lists, which may be shown later, to somebody else, or never."""
        time = self.outside.now + seconds
        self.send(number, [Click(id=self.next_id(), value=1.0, time=time, **click) for click in clicks])

    def send(self, number: int, rows: list[Outcome] | list[Click]) -> None:
        number = self.live(number)
        ledger = self.replicas[number].ledger
        configs = [each.config for each in ledger.experiments.values() if each.deleted is None]
        with suppress(DatabaseUnavailable):
            receipt, _ = record(ledger.store, rows, configs)
            refused = {
                each.id for each in receipt.unknown_outcomes if each.reason in ("experiment", "metric")
            }
            self.sent |= {row.id: reference_row(row) for row in rows if row.id not in refused}

    # What must hold.

    def read(self, table: str) -> list[reference.Row]:
        with closing(sqlite3.connect(self.path)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(f"SELECT * FROM {table}")]

    def entries(self) -> list[Entry]:
        with closing(sqlite3.connect(self.path)) as db, closing(sqlite3.connect(COPY)) as copy:
            db.backup(copy)
        return _reader().log()

    def rows_of_log(self) -> list[reference.Row]:
        return [plain(entry) for entry in self.entries()]

    def in_log(self) -> Any:
        return fold(self.entries())

    @rule()
    def look(self) -> None:
        """Compare everything with the model."""
        left = self.outside.left
        self.outside.left = NEVER
        for replica in [*self.replicas.values()] * 2:  # the first adds what waits, the second reads it
            replica.ledger.refresh()
        entries = self.entries()
        assert entries[: len(self.log)] == self.log
        self.log = entries
        log = [plain(entry) for entry in entries]
        facts = facts_of(self.read)
        self.nothing_is_lost(log, facts)
        self.states_are_those_of_the_model(log)
        self.reports_are_those_of_the_model(log, facts)
        self.outside.left = left

    def nothing_is_lost(self, log: reference.Log, facts: reference.Facts) -> None:
        gone = {row["experiment"]: number for number, row in enumerate(log) if row["kind"] == "delete"}
        for name, number in gone.items():
            before = reference.periods(log[:number], name)[-1]
            clocks = [max(row["time"] for row in log[: end + 1]) for end in range(len(log))]
            own = [clocks[n] for n, row in enumerate(log[:number]) if row["experiment"] == name]
            assert before["is_over"]
            assert clocks[number] - max(own) > KEPT_DAYS * 24 * HOUR
        there = {row["id"]: row for row in [*facts["outcomes"], *facts["clicks"]]}
        for name, row in self.sent.items():
            if row["experiment"] not in gone and not (row["experiment"] == "" and "order" in gone):
                assert row.items() <= there[name].items()
        exposed = {
            (row["experiment"], row["unit"], row["arm"]): (row["time"], row["bucket"])
            for row in facts["exposures"]
        }
        assert exposed == self.exposed

    def states_are_those_of_the_model(self, log: reference.Log) -> None:
        for number, replica in self.replicas.items():
            ledger = replica.ledger
            expected = {name: reference.state(log, name) for name in ledger.in_force.experiments}
            for name, model in expected.items():
                state = ledger.experiments[name]
                if model is None:  # this replica's config declares it, and no row does yet
                    assert state.status == "pending"
                    continue
                traffic = model["traffic"] if model["status"] == "running" else 0.0
                assert (name, state.status, set(state.rolled_back), state.traffic) == (
                    name,
                    model["status"],
                    model["rolled_back"],
                    traffic,
                )
            assigner = ledger.in_force.assigner
            for unit in UNITS:
                assigned = assigner.assign(unit)
                slot = bucket(LAYER_SALT, unit)
                givers = {
                    name
                    for name, model in expected.items()
                    if model is not None
                    for arm in (model["first"]["kind"] == "interleave" and ["interleaved"])
                    or ["control", "a", "b"]
                    if arm == "interleaved" or arm in {each["name"] for each in model["first"]["arms"]}
                    if reference.exposes(model, arm, bucket(model["first"]["salt"], unit), slot)
                }
                assert assigned is None or assigned.experiment in givers, number

    def reports_are_those_of_the_model(self, log: reference.Log, facts: reference.Facts) -> None:
        now = self.outside.now
        for name, experiment in fold(_reader().log()).items():
            found = summary(analyse(_reader(), experiment, now, {}, looks_seconds=-1.0))
            if experiment.deleted is None:
                expected = reference.report(log, facts, name, now)
            else:
                expected = self.deleted[name]
            assert (name, rounded(found)) == (name, rounded(expected))


def reference_row(row: Outcome | Click) -> reference.Row:
    """A row as the table should have it."""
    return {name: getattr(row, name) for name in row.__slots__}


@pytest.mark.parametrize(
    "histories", [5, pytest.param(int(os.environ.get("HISTORIES", "60")), marks=pytest.mark.more)]
)
@pytest.mark.timeout(0)
def test_every_history_gives_the_report_of_the_model(histories: int) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=histories,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    shares = {kind: round(number / COUNTED["history"], 2) for kind, number in COUNTED.most_common()}
    print(shares)
    if histories >= 500:
        assert all(shares.get(kind, 0.0) >= 0.1 for kind in HAPPENING), shares
