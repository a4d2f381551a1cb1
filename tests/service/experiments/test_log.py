"""What edits and starts the log allows, and what a history says. test_reports.py compares the states."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from headroom.service.errors import Conflict
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import EMPTY, Declared, Entry, fold, replay
from headroom.service.experiments.rules import check_action, check_edit
from tests.service.experiments.making import act, declares, experiment, logged
from tests.service.experiments.replicas import METRICS, NEVER, Database, Replica

START = 1_000_000.0
CONFIG = experiment("control", "a", "b", traffic=0.5)
OTHER = experiment(name="other", salt="other", slots=(0, 5000))


@pytest.fixture
def database(file_url: str) -> Iterator[Database]:
    with closing(Database(file_url)) as made:
        yield made


def test_a_shipped_arm_is_in_force_while_the_config_has_its_experiment() -> None:
    ship = act("ship", START, arm="a")
    assert logged(CONFIG, ship).everybody_gets == "a"
    gone = logged(CONFIG, ship, declares(time=START))
    assert (gone.status, gone.everybody_gets) == ("shipped", None)


def test_the_config_rules_and_what_was_started_over_http_is_paused_until_it_makes_way() -> None:
    half = CONFIG.model_copy(update={"slots": (0, 5000)})
    start = Entry("start", 1.0, experiment="prune20", declared=Declared((half,)))
    variants = dict.fromkeys(("control", "a", "b", "pruned"), "a score")

    def config(*experiments: ExperimentConfig, without: str = "") -> Entry:
        kinds = {name: kind for name, kind in variants.items() if name != without}
        return Entry("config", 2.0, declared=Declared(experiments, kinds))

    salted = OTHER.model_copy(update={"salt": "s", "slots": (5000, 10_000)})
    own = CONFIG.model_copy(update={"salt": "t"})
    for entry, clause in (
        (config(OTHER), "slots: [0, 5000) overlaps [0, 5000) of 'other'"),
        (config(salted), "salt: 's' is the salt of 'other'"),
        (config(without="b"), "arms[2].variant: there is no variant 'b'; there are control, a, pruned"),
        (config(own), "'prune20' has begun, so its kind, salt and arms must stay"),
    ):
        paused = fold([start, entry])["prune20"]
        assert paused.status == "paused"
        assert (paused.paused or "").startswith(clause)
        assert fold([start, entry, config()])["prune20"].status == "running"
        assert fold([start, act("stop", 1.5), entry])["prune20"].status == "stopped"
        # Stopping it first would not make way for another of its name.
        advice = (
            "another name and salt" if "has begun" in clause else "; change that, or stop 'prune20' first"
        )
        for rows in ([start], [start, act("stop", 1.5)])[: 2 if "has begun" in clause else 1]:
            with pytest.raises(ValueError, match=f"{advice}$"):
                check_edit(replay(EMPTY, rows), entry, is_start=False)
        check_edit(replay(EMPTY, [start]), entry, is_start=True)  # a start takes any
    ship = act("ship", 1.5, arm="b")
    for entry, everybody_gets in (
        (config(OTHER), "b"),  # it needs no slots
        (config(without="b"), None),
        (config(without="a"), "b"),
    ):
        assert fold([start, ship, entry])["prune20"].everybody_gets == everybody_gets
    check_edit(replay(EMPTY, [start]), config(half), is_start=False)
    taken_over = fold([start, config(CONFIG)])["prune20"]
    assert (taken_over.status, taken_over.source) == ("running", "config")
    assert fold([start, config(CONFIG), config()])["prune20"].status == "paused"


def test_only_one_experiment_may_be_shipped() -> None:
    world = replay(
        EMPTY,
        [
            declares(CONFIG),
            act("ship", 1.0, arm="a"),
            declares(OTHER),
            act("ship", 2.0, "other", arm="pruned"),
        ],
    )
    both = declares(CONFIG, OTHER)
    with pytest.raises(ValueError, match="'prune20' and 'other' would each have shipped an arm"):
        check_edit(world, both, is_start=True)


def test_an_arm_whose_variant_has_left_the_config_is_not_shipped() -> None:
    """It was answered with 200 and "everybody gets a", while everybody got the default."""
    declared = Declared((CONFIG,), dict.fromkeys(("control", "b"), "a score"))
    world = replay(EMPTY, [Entry("config", 0.0, declared=declared)])
    with pytest.raises(Conflict, match="has the variant 'a', which is not in the config"):
        check_action(act("ship", 1.0, arm="a"), world)
    check_action(act("ship", 1.0, arm="b"), world)


def test_an_arm_that_was_rolled_back_does_not_come_back() -> None:
    """Its users would have met the default meanwhile, and be unlike control's."""
    rolled_back = replay(EMPTY, [declares(CONFIG), act("rollback", 0.5, arm="a")])
    with pytest.raises(Conflict, match="its variant can only become the `default`"):
        check_action(act("ship", 1.0, arm="a"), rolled_back)


def test_the_history_says_what_each_edit_changed() -> None:
    edited = CONFIG.model_copy(update={"traffic": 1.0, "slots": (0, 10), "planned_units": 5})
    found = logged(CONFIG, declares(edited, time=1.0), declares(time=2.0), declares(edited, time=3.0))
    assert [(action.kind, action.detail) for action in found.history[1:]] == [
        (
            "edit",
            "traffic 0.5 to 1; slots [0, 10000] to [0, 10]; planned_units 10000 to 5 (the intervals go by "
            "10000, as at the start)",
        ),
        ("edit", "paused, so units get the default: the config in force does not declare it"),
        ("edit", "planned_units 10000 to 5 (the intervals go by 10000, as at the start)"),
        ("edit", "units get their arm again"),
    ]
    assert found.config.planned_units == CONFIG.planned_units


def test_a_variant_that_is_changed_is_told_with_its_first_change() -> None:
    def with_definition(text: str, time: float) -> Entry:
        return Entry("config", time, declared=Declared((CONFIG,), None, {"a": text, "control": "same"}))

    found = fold([with_definition(text, time) for time, text in enumerate(("one", "two", "three"))])[
        "prune20"
    ]
    assert found.variant_changes == {"a": 1}


def test_a_late_edit_does_not_undo_one_that_came_after_it(database: Database, file_url: str) -> None:
    """One replica was cut off from the database, and had nothing to say when it came back."""
    with closing(Database(file_url)) as cut_off:
        first, second = Replica(cut_off), Replica(database)
        for replica in (first, second):
            replica.ledger.apply(Declared((CONFIG,)), "start")
        cut_off.left = 0
        cut_off.now += 10.0
        first.ledger.apply(Declared((CONFIG.model_copy(update={"traffic": 0.1}),)), "early")
        database.now += 20.0
        second.ledger.apply(Declared((CONFIG.model_copy(update={"traffic": 1.0}),)), "late")
        cut_off.left = NEVER
        cut_off.now += 30.0
        first.ledger.refresh()
        assert [entry.config_version for entry in database.log()] == ["start", "late"]
        assert first.ledger.experiments["prune20"].traffic == 1.0


def test_the_later_of_two_edits_without_a_database_is_in_force(database: Database) -> None:
    """A ramp on another replica, which reached the database first, left the earlier one in force."""
    edited = Replica(database)
    other = Replica(database)
    for replica in (edited, other):
        replica.ledger.apply(Declared((CONFIG,)), "first")
    database.left = 0
    for version, configs in (("second", ()), ("third", (CONFIG, OTHER))):
        database.now += 1.0
        edited.ledger.apply(Declared(configs), version)
    database.left = NEVER
    database.now += 1.0
    other.ledger.act(lambda _: act("ramp", database.now, traffic=0.4))
    edited.ledger.refresh()
    assert [(entry.config_version, entry.time) for entry in database.log() if entry.kind == "config"] == [
        ("first", START),
        ("second", START + 1),
        ("third", START + 2),
    ]


def test_a_config_without_experiments_that_starts_without_a_database_takes_them_out_later(
    database: Database,
) -> None:
    """The replica had not read the log, so it added nothing, and the experiments ran on there."""
    Replica(database).ledger.apply(Declared((CONFIG,)), "with")
    database.now += 1.0
    database.left = 0
    restarted = Replica(database)
    restarted.ledger.apply(Declared(), "without")
    database.left = NEVER
    restarted.ledger.refresh()
    assert fold(database.log())["prune20"].status == "paused"


def test_the_log_has_the_time_from_which_units_got_arms_by_an_edit_without_a_database(
    database: Database,
) -> None:
    """Ten hours counted in which the log had the experiment as running, and everybody got the default."""
    replica = Replica(database)
    for version, configs in (("first", (CONFIG,)), ("lacks", ())):
        replica.ledger.apply(Declared(configs), version)
        database.now += 1.0
    database.left = 0
    replica.ledger.apply(Declared((CONFIG,)), "right")
    assert replica.ledger.experiments["prune20"].is_running
    restarted = Replica(database)
    database.now += 36_000.0
    whole = CONFIG.model_copy(update={"traffic": 1.0})
    for version, configs in (("none", ()), ("other", (OTHER,)), ("whole", (whole,))):
        restarted.ledger.apply(Declared(configs), version)
    assert restarted.ledger.experiments["prune20"].status == "pending"
    database.now += 36_000.0
    database.left = NEVER
    for each in (replica, restarted):
        each.ledger.refresh()
    limits = [
        (period.since - START, period.limits["control"]) for period in fold(database.log())["prune20"].periods
    ]
    assert limits == [(0.0, 1667), (1.0, -1), (2.0, 1667), (72_002.0, 3334)]
    assert [entry.config_version for entry in database.log()] == ["first", "lacks", "right", "whole"]


def test_a_row_of_a_clock_that_is_ahead_postpones_no_later_row(database: Database) -> None:
    """The arms' end came a month late, because a later row counts from the one before it on."""
    fast = Replica(database)
    fast.skew = 30 * 86_400.0
    fast.ledger.apply(Declared((CONFIG,)), "v")
    database.now += 60.0
    replica = Replica(database)
    replica.ledger.apply(Declared((CONFIG,)), "v")
    replica.ledger.act(lambda _: act("stop", replica.clock()))
    assert replica.ledger.experiments["prune20"].end == START + 60.0


def test_a_config_without_experiments_is_no_row_of_an_empty_log(database: Database) -> None:
    database.prepare()
    Replica(database).ledger.apply(Declared(), "without")
    assert database.log() == []


def test_replicas_and_restarts_with_one_config_add_one_row(database: Database) -> None:
    for _ in range(3):
        Replica(database).ledger.apply(Declared((CONFIG,)), "v")
    assert [entry.kind for entry in database.log()] == ["config"]


def test_the_operator_is_told_once_what_a_config_takes_out_or_pauses(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = experiment(name="free", salt="free", slots=(0, 5000))
    told: list[str] = []
    monkeypatch.setattr(METRICS, "notify_operator", told.append)
    Replica(database).ledger.apply(Declared((experiment(slots=(5000, 10_000)),)), "first")
    database.append(Entry("start", START + 1, experiment="free", declared=Declared((free,))))
    database.now += 2.0
    restarted = Replica(database)
    declared = Declared((experiment(name="other", salt="o", slots=(4000, 5000)),))
    restarted.ledger.apply(declared, "second")
    assert told == [
        "the experiment 'prune20' is paused, and its units get the default: the config in force does not "
        "declare it; change the config, or stop 'prune20'",
        "the experiment 'free' is paused, and its units get the default: slots: [0, 5000) overlaps "
        "[4000, 5000) of 'other'; change the config, or stop 'free'",
    ]
    restarted.ledger.refresh()
    assert len(told) == 2


def test_the_operator_is_told_that_an_experiment_with_a_used_name_does_not_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(METRICS, "notify_operator", told.append)
    Replica(database).ledger.apply(Declared((CONFIG,)), "first")
    database.append(act("stop", START + 1))
    Replica(database).ledger.apply(Declared(()), "lacks")
    assert told == []
    Replica(database).ledger.apply(Declared((CONFIG.model_copy(update={"salt": "t"}),)), "second")
    assert len(told) == 1
    assert told[0].startswith("an experiment of the config does not run: 'prune20' has begun, so its kind")


def test_a_restored_database_is_read_anew(database: Database) -> None:
    replica = Replica(database)
    replica.ledger.apply(Declared((CONFIG,)), "v")
    database.append(act("stop", START + 5))
    replica.ledger.refresh()
    assert replica.ledger.experiments["prune20"].status == "stopped"
    with database.write() as db:  # as the backup of before the stop has it
        db.exec_driver_sql("DELETE FROM log WHERE kind = 'stop'")
    replica.ledger.refresh()
    assert replica.ledger.experiments["prune20"].is_running
