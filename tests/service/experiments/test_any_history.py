"""Whatever happens in whatever order, a report is that of the plain model in reference.py.

Hypothesis draws histories of two replicas on one database: each method with `@rule` is a step. `settle`
compares what there is then with the model. It also ends each history, where reports are compared, too.
Nothing waits: the time, how many transactions succeed before the database is away, and when a replica writes
its facts are drawn. The suite draws the same histories each time.
"""

import logging
import math
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headroom.service.errors import DatabaseUnavailable, ServiceError
from headroom.service.experiments import rules
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import NO_BUCKET, bucket
from headroom.service.experiments.definition import LAYER_SALT
from headroom.service.experiments.events import Click, Exposure, Impression, Outcome, values_of
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.log import Entry, World, fold, replay
from headroom.service.experiments.outcomes import record
from headroom.service.experiments.retention import DAY_SECONDS, Retention
from headroom.service.experiments.store import Store
from tests.service.experiments import reference
from tests.service.experiments.comparing import (
    CONFIGS,
    FREE,
    READERS,
    UNITS,
    WINDOW,
    clear,
    declaration,
    facts_of,
    named,
    plain,
    rounded,
    summary,
)
from tests.service.experiments.drawn import (
    ACTIONS,
    CLICKS,
    ENDS,
    FILE,
    FIRST,
    HAPPENINGS,
    INDEX,
    LEFT,
    REPLICA,
    SECONDS,
    Action,
)
from tests.service.experiments.replicas import NEVER, Answers, Database, Replica, arm_of

# By itself Hypothesis makes five of six histories from the one before, with two steps made alike. Under any
# other name its generator draws each anew.
AVAILABLE_PROVIDERS["anew"] = f"{HypothesisProvider.__module__}.{HypothesisProvider.__name__}"

KEPT = 10 * WINDOW
"""Seconds that facts are kept after the end."""
STEPS = 30


class Histories(RuleBasedStateMachine):
    """Two replicas, one database, and callers.

    observer: reads the database, also while it is away. happened: counts the histories in which something
    happened.
    """

    def __init__(self, database: Database, observer: Store, happened: Counter[str]) -> None:
        super().__init__()
        clear(observer)
        database.begin()
        self.database = database
        self.observer = observer
        self.happened_in = happened
        self.happened: set[str] = set()
        self.replicas: dict[int, Replica] = {}
        self.names = 0
        self.world = World()  # what the database's log says
        self.log: list[Entry] = []
        self.exposed: dict[tuple[str, str, str], tuple[float, int]] = {}  # time and bucket
        self.stored: dict[tuple[str, str, float], reference.Row] = {}  # others by experiment, id and time
        self.lists: list[Impression] = []  # stored
        self.unlisted: set[tuple[str, str]] = set()  # units and the lists that they clicked too early
        self.last_edit: tuple[Replica, str] | None = None  # the last file that was put in force, and where
        self.rollbacks: list[tuple[Replica, str, str]] = []  # experiments and arms, and who rolled them back
        self.answers: list[Answers] = []
        self.last_reports: dict[str, reference.Row] = {}  # of experiments whose facts are deleted

    @initialize(file=st.sampled_from(["right", "right", "right", "both", "taken", "less"]))
    def begin(self, file: str) -> None:
        self.restart(0, file)
        self.request(0, 0, len(UNITS), None, is_written=False)
        self.show(0, READERS, "q1")
        self.write(0)
        self.database.now += 2 * WINDOW

    def teardown(self) -> None:
        self.settle()
        self.units_got_what_the_log_says_of_that_time()
        self.reports_are_those_of_the_model()
        self.happened |= {entry.kind for entry in self.log}
        if self.database.refused:
            self.happened.add("outage")
        self.happened_in.update(self.happened)

    def replica(self, number: int) -> Replica:
        """Return a replica that runs: this one, or else the other. If none does, this one is started."""
        if not self.replicas:
            self.restart(number, "right")
        return self.replicas.get(number) or self.replicas[1 - number]

    def read_log(self) -> World:
        self.world = replay(self.world, self.observer.log(self.world.number))
        return self.world

    def version_in_force(self) -> str:
        return self.read_log().config.config_version

    def next_name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    # What operators do.

    @rule(number=REPLICA, file=st.one_of(st.none(), FILE))
    def restart(self, number: int, file: str | None) -> None:
        """Kill a replica, if it runs, and start it with a file. None: it stays away."""
        replica = self.replicas.pop(number, None)
        if replica is not None and (replica.exposures or replica.lists):
            self.happened.add("killed with facts")
        if file is not None:
            self.replicas[number] = Replica(self.database)
            self.edit(number, file)
            if file != "right":
                self.happened.add("wrong file")

    @rule(number=REPLICA, file=FILE, may_start=st.sampled_from([True, True, False]))
    def edit(self, number: int, file: str, may_start: bool = True) -> None:
        """Edit the config of one replica."""
        self.database.now += 0.001  # no two edits are at the same time
        replica = self.replica(number)
        if len(self.replicas) == 2:
            self.happened.add("edit on one of two")
        before = replica.version_in_force(self.read_log())
        try:
            replica.ledger.apply(declaration(file), file, may_start=may_start)
        except ValueError:
            self.happened.add("edit refused")
            return
        others = [other for other in self.replicas.values() if other is not replica]
        is_last = all(other.has_read for other in others)  # others are in force once they have read the log
        if may_start:  # of one that was in force no row comes, so one that waits elsewhere comes later
            self.last_edit = (replica, file) if is_last and file != before else None

    @rule(number=REPLICA)
    def start_over_http(self, number: int) -> None:
        ledger = self.replica(number).ledger

        def decide(world: World) -> Entry:
            rules.check_start(FREE, world)
            started = replace(ledger.declared, experiments=(FREE,))
            return Entry("start", ledger.clock(), actor="boss", experiment="free", declared=started)

        self.act(ledger, decide)

    @rule(number=REPLICA, index=INDEX, action=ACTIONS)
    def operate(self, number: int, index: int, action: Action) -> None:
        """Let a person ramp, stop or ship an experiment, or take a ship back."""
        ledger = self.replica(number).ledger
        name = self.pick(ledger, index, is_shipped=action["kind"] == "rollback")

        def decide(world: World) -> Entry:
            entry = Entry(time=ledger.clock(), actor="boss", experiment=name, **action)
            rules.check_action(entry, world)
            return entry

        self.act(ledger, decide)

    def pick(self, ledger: Ledger, index: int, *, is_shipped: bool = False) -> str:
        """Return one of the experiments that run, or have shipped, as a replica knows them; if none, any."""
        known = ledger.experiments.items()
        fitting = [name for name, each in known if (each.shipped if is_shipped else each.is_running)]
        names = fitting or [config.name for config in CONFIGS]
        return names[index % len(names)]

    def act(self, ledger: Ledger, decide: Callable[[World], Entry]) -> None:
        with suppress(KeyError, ServiceError):  # it is not there, refused, or the database is away
            ledger.act(decide)

    @rule(number=REPLICA, index=INDEX, arm=st.sampled_from(["a", "b"]))
    def guardrail(self, number: int, index: int, arm: str) -> None:
        """Let a guardrail roll an arm back, which a replica does without the database.

        Of an experiment that only this replica's waiting config has, it may end with that config.
        """
        replica = self.replica(number)
        ledger = replica.ledger
        name = self.pick(ledger, index)
        runs_here = name in ledger.experiments and ledger.experiments[name].is_running
        if runs_here and name in self.read_log().experiments:
            self.rollbacks.append((replica, name, arm))
        entry = Entry("rollback", ledger.clock(), "guardrail", name, arm=arm, detail=self.next_name())
        ledger.roll_back(entry)

    # What goes on around them.

    @rule(number=REPLICA)
    def refresh(self, number: int) -> None:
        """Let a replica read the log, as each does every second."""
        self.replica(number).ledger.refresh()

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, WINDOW, 5 * WINDOW]), left=LEFT)
    def wait(self, seconds: float, left: int) -> None:
        """Let time go by, and the database be away after so many transactions from now on."""
        self.database.now += seconds
        self.database.left = left

    @rule(number=REPLICA, seconds=st.sampled_from([-2 * WINDOW, -1.0, 0.0, 2 * WINDOW]))
    def step_clock(self, number: int, seconds: float) -> None:
        """Let a replica's clock go wrong by so many seconds."""
        replica = self.replica(number)
        if seconds != replica.skew:
            self.happened.add("wrong clock")
        replica.skew = seconds

    @rule(
        number=REPLICA,
        index=INDEX,
        action=st.one_of(st.none(), ENDS),
        late=st.sampled_from([0.0, 0.5, 1.5, 1.5]),
    )
    def delete(self, number: int, index: int, action: Action | None, late: float) -> None:
        """Let a replica look for facts that are too old, some time after an end. late: a share of KEPT."""
        if action is not None:
            self.operate(number, index, action)
        self.database.now += late * KEPT
        replica = self.replica(number)
        replica.ledger.refresh()
        log = [plain(entry) for entry in self.observer.log()]
        facts = facts_of(self.observer)
        retention = Retention(replica.ledger, KEPT / DAY_SECONDS)
        with suppress(DatabaseUnavailable):
            for _ in range(2):  # the first logs the deletion
                retention.look()
        for entry in self.observer.log()[len(log) :]:
            report = reference.report(log, facts, entry.experiment, replica.clock())
            self.last_reports[entry.experiment] = report

    # What callers do.

    @rule(
        number=REPLICA,
        first=FIRST,
        count=st.integers(1, len(UNITS)),
        arm=st.sampled_from([None, None, "control", "a", "b"]),
        is_written=st.booleans(),
    )
    def request(self, number: int, first: int, count: int, arm: str | None, is_written: bool) -> None:
        """Ask for units. arm: of `prune`, if the caller chose it."""
        replica = self.replica(number)
        self.answers.append(replica.answers())
        assigner = replica.ledger.assigner
        for unit in (UNITS * 2)[first : first + count]:
            try:
                assigned = assigner.assign(unit) if arm is None else assigner.choose(unit, arm, "prune")
            except ServiceError:  # this replica's config has no such experiment
                continue
            if assigned is not None and assigned.interleaved is None:
                position = assigned.bucket if arm is None else NO_BUCKET
                self.expose(replica, assigned.experiment, unit, assigned.arm, position)
        if is_written:
            self.write(number)

    @rule(
        number=REPLICA,
        units=st.lists(st.sampled_from(READERS), min_size=1, max_size=6),
        query=st.sampled_from(["q1", "q2", "q3", None]),
        order=st.permutations(["show", "click", "write"]),
        index=INDEX,
        metric=st.sampled_from(["click", "buy"]),
    )
    def visit(
        self, number: int, units: list[str], query: str | None, order: list[str], index: int, metric: str
    ) -> None:
        """Show interleaved lists, send clicks on them, and write the lists, in some order."""
        for what in order:
            if what == "show":
                self.show(number, units, query)
            elif what == "write":
                self.write(number)
            else:
                clicks = [
                    {"unit": unit, "list_id": f"{unit}-{query}", "metric": metric, "index": index}
                    for unit in units
                ]
                self.click(number, clicks, 0.0)

    def show(self, number: int, units: list[str], query: str | None) -> None:
        replica = self.replica(number)
        for unit in units:
            assigned = replica.ledger.assigner.assign(unit)
            if assigned is None or assigned.interleaved is None:
                continue
            experiment = assigned.experiment
            self.expose(replica, experiment, unit, assigned.arm, assigned.bucket)
            name = self.next_name() if query is None else f"{unit}-{query}"
            shown = Impression(experiment, name, unit, replica.clock(), "", "tcs-", (2, 0, 1), query_id=query)
            replica.lists.append(shown)
            if self.unlisted & {(unit, name), (unit, query)}:
                self.happened.add("click before its list")

    def expose(self, replica: Replica, experiment: str, unit: str, arm: str, position: int) -> None:
        slot = None if position == NO_BUCKET else bucket(LAYER_SALT, unit)
        replica.exposures.append(Exposure(experiment, unit, arm, position, replica.clock(), "", slot))

    def write(self, number: int) -> None:
        """Let a replica write its facts."""
        replica = self.replica(number)
        with suppress(DatabaseUnavailable):
            replica.ledger.store.add(replica.exposures)
            for exposure in replica.exposures:
                key = exposure.experiment, exposure.unit, exposure.arm
                at = exposure.time, exposure.bucket
                self.exposed[key] = min(at, self.exposed.get(key, at))
            replica.exposures = []
            replica.ledger.store.add(replica.lists)
            for shown in replica.lists:
                self.stored[shown.experiment, shown.id, shown.time] = values_of(shown)
            self.lists += replica.lists
            replica.lists = []

    @rule(
        number=REPLICA,
        name=st.sampled_from(["prune", "prune", "free", "taker"]),
        metrics=st.lists(st.sampled_from(["click", "buy", "rate"]), min_size=1, unique=True),
        first=FIRST,
        count=st.integers(4, len(UNITS)),
        value=st.integers(0, 3),
        seconds=SECONDS,
        is_near=st.booleans(),
    )
    def outcome(
        self,
        number: int,
        name: str,
        metrics: list[str],
        first: int,
        count: int,
        value: int,
        seconds: float,
        is_near: bool,
    ) -> None:
        """Send outcomes of some units. seconds: after now or, if `is_near`, after the unit's exposure."""
        exposed = {
            unit: time for (experiment, unit, _), (time, _) in self.exposed.items() if experiment == name
        }
        rows = []
        for index, unit in enumerate((UNITS * 2)[first : first + count]):
            time = exposed.get(unit, self.database.now) if is_near else self.database.now
            for metric in metrics:
                value_of_unit = float((value + index) % 4)
                rows.append(Outcome(name, self.next_name(), unit, metric, value_of_unit, time + seconds))
        if seconds < 0:
            self.happened.add("late outcome")
        self.send(number, rows)

    @rule(number=REPLICA, clicks=CLICKS, seconds=SECONDS)
    def click(self, number: int, clicks: list[dict[str, Any]], seconds: float) -> None:
        """Click on lists, which may be shown later, to somebody else, or never."""
        rows = []
        time = self.database.now + seconds
        for click in clicks:
            list_id = click["list_id"].format(unit=click["unit"])
            named = {"experiment": "order"} | click | {"list_id": list_id}
            rows.append(Click(**named, id=self.next_name(), value=1.0, time=time))
            self.note_order(list_id, click["unit"])
        self.send(number, rows)

    def note_order(self, name: str, unit: str) -> None:
        """Note whether a list is stored when it is clicked."""

        unwritten = [shown for replica in self.replicas.values() for shown in replica.lists]
        if named(self.lists, name, unit):
            self.happened.add("click after its list")
        elif named(unwritten, name, unit):
            self.happened.add("click with its list")
        else:
            self.unlisted.add((unit, name))

    def send(self, number: int, rows: list[Outcome] | list[Click]) -> None:
        ledger = self.replica(number).ledger
        configs = [each.config for each in ledger.experiments.values() if each.deleted is None]
        with suppress(DatabaseUnavailable):
            receipt, _ = record(ledger.store, rows, configs)
            reasons = {each.id: each.reason for each in receipt.unknown_outcomes}
            for row in rows:
                if reasons.get(row.id) != "experiment":
                    self.stored[row.experiment, row.id, row.time] = values_of(row)

    # What must hold.

    @rule()
    def settle(self) -> None:
        """Bring the database back, let all replicas read the log, and compare all but the reports."""
        self.database.left = NEVER
        for replica in [*self.replicas.values()] * 2:  # the first adds what waits, the second reads it
            replica.ledger.refresh()
        entries = self.observer.log()
        assert entries[: len(self.log)] == self.log, "rows of the log never change"
        self.log = entries
        log = [plain(entry) for entry in entries]
        self.nothing_that_was_done_is_missing()
        self.only_what_is_long_over_is_deleted(log)
        self.no_fact_is_lost(log)
        self.replicas_assign_as_the_model(log)

    def nothing_that_was_done_is_missing(self) -> None:
        """The log has what running replicas did, also while the database was away."""
        running = self.replicas.values()
        if self.last_edit is not None and self.last_edit[0] in running and "wrong clock" not in self.happened:
            assert self.version_in_force() == self.last_edit[1]
        logged = {(entry.experiment, entry.arm) for entry in self.log if entry.kind == "rollback"}
        assert {(name, arm) for replica, name, arm in self.rollbacks if replica in running} <= logged

    def only_what_is_long_over_is_deleted(self, log: reference.Log) -> None:
        for number, row in enumerate(log):
            if row["kind"] == "delete":
                *_, before = reference.periods(log[:number], row["experiment"])
                assert before["is_over"]
                assert row["time"] - reference.last_act(log[:number], row["experiment"]) > KEPT

    def no_fact_is_lost(self, log: reference.Log) -> None:
        facts = facts_of(self.observer)
        gone = {row["experiment"] for row in log if row["kind"] == "delete"}
        stay = [name for name in ("order", "again") if name not in gone]
        starts = [reference.periods(log, name)[0]["since"] for name in stay if name in self.world.experiments]
        found = {
            (row["experiment"], row["id"], row["time"]): row
            for table in ("outcomes", "clicks", "impressions")
            for row in facts[table]
        }
        for key, row in self.stored.items():
            if row["experiment"] == "" and gone & {"order", "again"}:
                on = named(self.lists, row["list_id"], row["unit"])
                is_old = row["time"] < min(starts, default=math.inf)
                may_go = is_old or (bool(on) and on <= gone)
            else:
                may_go = row["experiment"] in gone
            assert may_go or row.items() <= found[key].items()
        exposed = {
            (row["experiment"], row["unit"], row["arm"]): (row["time"], row["bucket"])
            for row in facts["exposures"]
        }
        assert exposed == self.exposed

    def replicas_assign_as_the_model(self, log: reference.Log) -> None:
        names = {name for row in log for name in row["experiments"]}
        states = {name: reference.state(log, name) for name in names}
        arms = {unit: reference.arm_of(states, unit) for unit in UNITS}
        version = self.version_in_force()
        for replica in self.replicas.values():
            ledger = replica.ledger
            for name, experiment in ledger.experiments.items():
                state = states.get(name)
                if state is None:  # this replica's config declares it, and no row does yet
                    assert experiment.status == "pending"
                    continue
                assert (experiment.status, experiment.rolled_back, experiment.traffic) == (
                    state["status"],
                    state["rolled_back"],
                    state["traffic"] if state["status"] == "running" else 0.0,
                )
            for unit, expected in arms.items():
                found = arm_of(ledger.assigner, unit)
                assert found == expected or (found is None and ledger.config_version != version)

    def units_got_what_the_log_says_of_that_time(self) -> None:
        """Unless another replica's row, which this one did not know, came before its own."""
        if "wrong clock" in self.happened:
            return
        for answers in self.answers:
            since = accumulate((entry.time for entry in self.log), max)
            rows = [entry for entry, time in zip(self.log, since, strict=True) if time <= answers.time]
            unknown = tuple(replace(row, number=0) for row in rows if row.number > answers.number)
            if unknown != answers.waiting:
                continue
            log = [plain(row) for row in rows]
            states = {name: reference.state(log, name) for name in fold(rows)}
            versions = [row.config_version for row in rows if row.kind == "config"]
            for unit in UNITS:
                expected = reference.arm_of(states, unit)
                found = arm_of(answers.assigner, unit)
                known = answers.experiments.get(expected[0] if expected else "")
                is_out = known is None or known.status == "pending" or answers.config_version != versions[-1]
                assert found == expected or (found is None and is_out)

    def reports_are_those_of_the_model(self) -> None:
        log = [plain(entry) for entry in self.log]
        facts = facts_of(self.observer)
        now = self.database.now
        for name, experiment in fold(self.log).items():
            found = summary(analyse(self.observer, experiment, now))
            expected = (
                self.last_reports[name] if experiment.deleted else reference.report(log, facts, name, now)
            )
            assert (name, rounded(found)) == (name, rounded(expected))


OTHERS = 1_000 * int(os.environ.get("HISTORIES", 0))
"""HISTORIES=1 and any other number draw other histories."""


@pytest.mark.parametrize(
    ("histories", "seed_of_part"),
    [
        (50, 0),
        *(pytest.param(500, part, marks=[pytest.mark.more, pytest.mark.slow]) for part in (1, 2, 3, 4)),
    ],
)
@pytest.mark.timeout(3600)
def test_every_history_gives_the_report_of_the_model(
    file_url: str, histories: int, seed_of_part: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "headroom")  # what replicas log of thousands of outages
    happened: Counter[str] = Counter()
    with closing(Database(file_url)) as database, closing(Store(file_url)) as observer:
        database.prepare()
        run_state_machine_as_test(
            seed(seed_of_part + OTHERS)(lambda: Histories(database, observer, happened)),
            settings=settings(
                backend="anew",
                database=None,
                max_examples=histories,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    shares = {kind: round(happened[kind] / histories, 2) for kind in HAPPENINGS}
    assert min(shares.values()) >= (0.02 if histories == 50 else 0.1), shares
