"""What is in force follows from the log alone, and the times in which a unit had its arm."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.service.errors import Conflict
from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import EMPTY, Declared, Entry, Experiment, World, fold, replay
from headroom.service.experiments.rules import MAX_OPEN, check_edit, check_start
from tests.service.experiments.making import act, declares, experiment, logged

START = 1_000_000.0
CONFIG = experiment("control", "a", "b", traffic=0.5)
OTHER = experiment(name="other", salt="other", slots=(0, 5000))
BACK = {name: act("rollback", START, arm=name, reason="p99") for name in ("control", "a", "b", "gone")}


def acted(kind: Any, **more: Any) -> Entry:
    return act(kind, START, **more)


@pytest.mark.parametrize(
    ("log", "status", "traffic", "rolled_back"),
    [
        ([], "running", 0.5, ""),
        # What a person set overrides the config.
        ([acted("ramp", traffic=0.25)], "running", 0.25, ""),
        # A rollback and a stop are for good, and a stop takes a shipped arm back.
        ([BACK["a"]], "running", 0.5, "a"),
        ([BACK["a"], acted("ramp", traffic=0.2)], "running", 0.2, "a"),
        ([BACK["a"], BACK["b"]], "rolled_back", 0, "ab"),
        ([acted("stop"), acted("ramp", traffic=0.1)], "stopped", 0, ""),
        ([acted("ship", arm="a")], "shipped", 0, ""),
        ([acted("ship", arm="a"), acted("stop")], "stopped", 0, ""),
        # A person's rollback takes a ship back, and it may be shipped again.
        ([acted("ship", arm="a"), acted("rollback")], "stopped", 0, ""),
        ([acted("ship", arm="a"), acted("rollback"), acted("ship", arm="a")], "shipped", 0, ""),
        # Control, and arms that are gone, change nothing.
        ([BACK["control"], BACK["gone"], acted("ship", arm="gone")], "running", 0.5, ""),
        # Out of the config, and back.
        ([declares()], "out", 0, ""),
        ([declares(), declares(CONFIG)], "running", 0.5, ""),
        ([declares(), acted("ramp", traffic=0.1), declares(CONFIG)], "running", 0.1, ""),
        ([acted("ship", arm="a"), declares()], "shipped", 0, ""),
    ],
)
def test_the_log_says_the_state_of_an_experiment(
    log: list[Entry], status: str, traffic: float, rolled_back: str
) -> None:
    state = logged(CONFIG, *log, time=START).state
    assert (state.status, state.traffic, state.started) == (status, traffic, START)
    assert state.rolled_back == set(rolled_back)
    is_out = bool(log) and log[-1].kind == "config"
    assert state.shipped == ("a" if status == "shipped" and not is_out else None)
    assert state.is_running == (status == "running")


@pytest.mark.parametrize(
    "change", [{"salt": "t"}, {"arms": [{"name": n, "variant": n, "weight": 2} for n in ("control", "a")]}]
)
def test_an_experiment_that_is_declared_with_other_arms_does_not_run_until_that_is_undone(
    change: dict[str, Any],
) -> None:
    """Its units would move between arms, and what was measured before would be counted for others."""
    changed = ExperimentConfig.model_validate(CONFIG.model_dump() | change)
    found = logged(CONFIG, declares(changed, time=5.0))
    assert (found.status, found.config) == ("changed", CONFIG)
    assert logged(CONFIG, declares(changed, time=5.0), declares(CONFIG, time=6.0)).status == "running"
    reslotted = CONFIG.model_copy(update={"slots": (0, 10)})
    assert logged(CONFIG, declares(reslotted, time=5.0)).state.is_running


def test_the_config_rules_and_what_was_started_over_http_is_paused_until_it_makes_way() -> None:
    start = Entry("start", 1.0, experiment="prune20", declared=Declared((CONFIG,)))
    variants = dict.fromkeys(("control", "a", "b", "pruned"), "a score")

    def config(*experiments: ExperimentConfig, without: str = "") -> Entry:
        kinds = {name: kind for name, kind in variants.items() if name != without}
        return Entry("config", 2.0, declared=Declared(experiments, kinds))

    for entry, clause in (
        (config(OTHER), "experiments[0].slots: [0, 5000) overlaps [0, 10000) of 'prune20'"),
        (config(without="b"), "variants: 'b' is not there, and is a variant of 'prune20'"),
    ):
        paused = fold([start, entry])["prune20"]
        assert paused.status == "paused"
        assert (paused.paused or "").startswith(clause)
        assert fold([start, entry, config()])["prune20"].status == "running"
        assert fold([start, act("stop", 1.5), entry])["prune20"].status == "stopped"
        with pytest.raises(ValueError, match="change that, or stop 'prune20' first"):
            check_edit(replay(EMPTY, [start]), Declared(), entry)
        check_edit(replay(EMPTY, [start]), None, entry)  # a start takes any
    ship = act("ship", 1.5, arm="b")
    assert fold([start, ship, config(OTHER)])["prune20"].status == "shipped", "it needs no slots"
    assert fold([start, ship, config(without="b")])["prune20"].status == "paused"
    assert fold([start, ship, config(without="a")])["prune20"].status == "shipped"
    salted = CONFIG.model_copy(update={"salt": "t"})  # it is in nobody's way but its own
    assert fold([start, config(salted)])["prune20"].status == "changed"
    taken_over = fold([start, config(CONFIG)])["prune20"]
    assert (taken_over.status, taken_over.source) == ("running", "config")
    assert fold([start, config(CONFIG), config()])["prune20"].status == "out"


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
    with pytest.raises(ValueError, match="'prune20' and 'other' have each shipped an arm"):
        check_edit(world, None, both)


def test_the_number_of_open_experiments_without_a_file_is_bounded() -> None:
    def numbered(number: int) -> ExperimentConfig:
        return experiment(name=f"n{number}", salt=f"s{number}", slots=(number, number + 1))

    world = replay(
        EMPTY,
        [
            Entry("start", 1.0, experiment=f"n{number}", declared=Declared((numbered(number),)))
            for number in range(MAX_OPEN)
        ],
    )
    with pytest.raises(Conflict, match=f"{MAX_OPEN} experiments"):
        check_start(numbered(MAX_OPEN), world)
    check_start(numbered(MAX_OPEN), replay(world, [act("stop", 2.0, "n0")]))


UNITS = [
    (arm, bucket, slot)
    for arm in ("control", "a", "b")
    for bucket, slot in ((0, 10), (900, 9000), (3000, 9000))
]
UNITS += [(arm, NO_BUCKET, None) for arm in ("control", "a", "b")]
SPAN = {"control": 0, "a": 3334, "b": 6667}

entries = st.lists(
    st.one_of(
        st.builds(
            lambda traffic, slots, planned: declares(
                CONFIG.model_copy(update={"traffic": traffic, "slots": slots, "planned_units": planned})
            ),
            st.sampled_from([0.0, 0.3, 1.0]),
            st.sampled_from([(0, 5000), (0, 10_000)]),
            st.sampled_from([10, 20]),
        ),
        st.just(declares()),
        st.just(declares(CONFIG.model_copy(update={"salt": "x"}))),
        st.builds(lambda traffic: act("ramp", 0.0, traffic=traffic), st.sampled_from([0.0, 0.1, 1.0])),
        st.builds(lambda arm: act("rollback", 0.0, arm=arm, reason="p99"), st.sampled_from(["a", "b"])),
        st.just(act("stop", 0.0)),
        st.just(act("ship", 0.0, arm="a")),
        st.just(act("rollback", 0.0)),
    ),
    max_size=8,
)
times = st.lists(st.floats(0, 100), min_size=8, max_size=8)


def exposes(found: Experiment, arm: str, bucket: int, slot: int | None, moment: float) -> bool:
    """Whether a unit has its arm at a moment, by the periods."""
    for period in found.periods:
        if period.since <= moment < period.until:
            first, end = period.slots
            in_slots = slot is None or first <= slot < end
            return bucket < period.limits.get(arm, NO_BUCKET) and in_slots
    return False


@given(entries, times)
def test_a_period_is_the_state_that_the_rows_until_then_lead_to(
    rows: Sequence[Entry], moments: Sequence[float]
) -> None:
    """Nothing that is written later changes what was in force before, whatever the clocks say."""
    log = [declares(CONFIG), *(replace(row, time=moment) for row, moment in zip(rows, moments, strict=False))]
    found = fold(log)["prune20"]
    assert found.periods[0].since == 0
    assert found.periods[-1].until == math.inf
    for one, other in zip(found.periods, found.periods[1:], strict=False):
        assert one.since < one.until == other.since
        assert (one.limits, one.slots) != (other.limits, other.slots)
    now = 0.0
    for count in range(1, len(log) + 1):
        then = fold(log[:count])["prune20"]
        now = max(now, log[count - 1].time)
        until = max(now, log[count].time) if count < len(log) else math.inf
        if until == now:
            continue
        state = then.state
        for arm, offset, slot in UNITS:
            bucket = offset if offset == NO_BUCKET else SPAN[arm] + offset
            exposed = then.config.exposed(state.traffic, state.rolled_back)
            is_within = offset == NO_BUCKET or (
                offset < exposed.get(arm, 0)
                and slot is not None
                and then.config.slots[0] <= slot < then.config.slots[1]
            )
            has_arm = state.is_running and arm in exposed and is_within
            assert exposes(found, arm, bucket, slot, now) == has_arm
        if then.ended is not None:
            assert found.ended == then.ended
            assert not any(period.limits for period in found.periods if period.since >= then.ended)


@given(entries, st.data())
def test_rows_that_are_read_one_by_one_say_the_same(rows: Sequence[Entry], data: st.DataObject) -> None:
    log = [declares(CONFIG), *rows]
    cut = data.draw(st.integers(0, len(log)))
    world = replay(replay(World(), log[:cut]), log[cut:])
    assert world.experiments == fold(log)


def test_the_history_says_what_each_edit_changed() -> None:
    edited = CONFIG.model_copy(update={"traffic": 1.0, "slots": (0, 10), "planned_units": 5})
    found = logged(CONFIG, declares(edited, time=1.0), declares(time=2.0), declares(edited, time=3.0))
    assert [(action.kind, action.detail) for action in found.history[1:]] == [
        ("edit", "traffic 0.5 to 1; slots [0, 10000] to [0, 10]; planned_units 10000 to 5"),
        ("edit", "taken out of the config, so units get the default"),
        ("edit", "units get their arm again"),
    ]
    assert found.begun.planned_units == CONFIG.planned_units


def test_a_variant_that_is_changed_is_told_with_its_first_change() -> None:
    def with_definition(text: str, time: float) -> Entry:
        return Entry("config", time, declared=Declared((CONFIG,), None, {"a": text, "control": "same"}))

    found = fold([with_definition(text, time) for time, text in enumerate(("one", "two", "three"))])[
        "prune20"
    ]
    assert found.variant_changes == {"a": 1}
