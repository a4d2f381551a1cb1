"""What edits and starts the log allows, and what a history says. test_reports.py compares the states."""

import pytest

from headroom.service.errors import Conflict
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import EMPTY, Declared, Entry, fold, replay
from headroom.service.experiments.rules import MAX_OPEN, check_edit, check_start
from tests.service.experiments.making import act, declares, experiment, logged

START = 1_000_000.0
CONFIG = experiment("control", "a", "b", traffic=0.5)
OTHER = experiment(name="other", salt="other", slots=(0, 5000))


def test_a_shipped_arm_is_in_force_while_the_config_has_its_experiment() -> None:
    ship = act("ship", START, arm="a")
    assert logged(CONFIG, ship).everybody_gets == "a"
    assert logged(CONFIG, ship, declares(time=START)).everybody_gets is None
    gone = logged(CONFIG, act("ship", START, arm="gone"))
    assert (gone.is_running, gone.everybody_gets, gone.traffic) == (True, None, 0.5)


def test_the_config_rules_and_what_was_started_over_http_is_paused_until_it_makes_way() -> None:
    half = CONFIG.model_copy(update={"slots": (0, 5000)})
    start = Entry("start", 1.0, experiment="prune20", declared=Declared((half,)))
    variants = dict.fromkeys(("control", "a", "b", "pruned"), "a score")

    def config(*experiments: ExperimentConfig, without: str = "") -> Entry:
        kinds = {name: kind for name, kind in variants.items() if name != without}
        return Entry("config", 2.0, declared=Declared(experiments, kinds))

    salted = OTHER.model_copy(update={"salt": "s", "slots": (5000, 10_000)})
    for entry, clause in (
        (config(OTHER), "experiments[0].slots: [0, 5000) overlaps [0, 5000) of 'prune20', which was started"),
        (
            config(salted),
            "experiments[0].salt: 's' is the salt of 'prune20', which was started without a file",
        ),
        (config(without="b"), "variants: 'b' is not there, and is a variant of 'prune20', which was started"),
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
    with pytest.raises(ValueError, match=r"experiments\[0\]\.name: an experiment 'prune20' was started"):
        check_edit(replay(EMPTY, [start]), Declared(), config(half))
    own = CONFIG.model_copy(update={"salt": "t"})  # it is in nobody's way but its own
    assert fold([start, config(own)])["prune20"].status == "changed"
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
