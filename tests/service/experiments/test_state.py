"""Where an experiment stands follows from its log, alike in every replica."""

from __future__ import annotations

import math
from typing import Any

import pytest

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.state import IDLE, Epoch, Run, fold, identity, runs

START = 1_000_000.0
CONFIG = ExperimentConfig.model_validate(
    {
        "name": "prune20",
        "salt": "s",
        "arms": [{"name": name, "variant": name} for name in ("control", "a", "b")],
        "traffic": 0.5,
        "ramp": [[0.01, "1h"], [0.05, "2h"]],
    }
)


def action(kind: Any, time: float = START, **more: Any) -> Action:
    return Action(experiment="prune20", kind=kind, time=time, actor="test", **more)


STARTED = action("start", detail=identity(CONFIG))


def test_nothing_runs_before_its_start_is_recorded() -> None:
    assert fold(CONFIG, [], START) == IDLE
    assert not IDLE.is_running


@pytest.mark.parametrize(
    ("hours", "traffic", "next_hours"),
    [(0, 0.01, 1), (0.99, 0.01, 1), (1, 0.05, 3), (2.9, 0.05, 3), (3, 0.5, None), (1000, 0.5, None)],
)
def test_a_ramp_follows_its_schedule(hours: float, traffic: float, next_hours: float | None) -> None:
    standing = fold(CONFIG, [STARTED], START + 3600 * hours)
    assert standing.traffic == traffic
    assert standing.next_step == (None if next_hours is None else START + 3600 * next_hours)


def test_what_a_person_set_overrides_the_schedule() -> None:
    standing = fold(CONFIG, [STARTED, action("ramp", traffic=0.25)], START + 3600 * 5)
    assert (standing.traffic, standing.next_step, standing.is_running) == (0.25, None, True)


def test_a_rollback_lasts_until_the_arm_is_reinstated_by_name() -> None:
    log = [STARTED, action("rollback", arm="a", reason="p99")]
    assert fold(CONFIG, log, START).rolled_back == {"a"}
    assert fold(CONFIG, log, START).is_running
    log += [action("ramp", traffic=0.5)]
    assert fold(CONFIG, log, START).rolled_back == {"a"}
    log += [action("rollback", arm="b", reason="p99")]
    assert fold(CONFIG, log, START).status == "rolled_back"
    assert fold(CONFIG, log, START).traffic == 0
    log += [action("reinstate", arm="b")]
    assert fold(CONFIG, log, START).is_running
    assert fold(CONFIG, log, START).rolled_back == {"a"}


def test_a_rollback_that_knew_no_reinstatement_does_not_count_after_it() -> None:
    """The log's order decides: a clock that is behind by minutes must not undo a guardrail's work."""
    log = [STARTED, action("rollback", START + 20, arm="a"), action("reinstate", START + 60, arm="a")]
    cut_off = action("rollback", START + 90, arm="a", seen=2)
    assert fold(CONFIG, [*log, cut_off], START + 90).rolled_back == frozenset()
    assert len(runs(CONFIG, [*log, cut_off], START + 90)) == 3
    for seen in (3, None):  # None: of an older release
        behind = action("rollback", START + 30, arm="a", seen=seen)
        assert fold(CONFIG, [*log, behind], START + 90).rolled_back == {"a"}
    assert fold(CONFIG, [*log, action("rollback", START + 30, arm="b", seen=1)], START).rolled_back == {"b"}


def test_control_cannot_be_rolled_back() -> None:
    assert fold(CONFIG, [STARTED, action("rollback", arm="control")], START).rolled_back == frozenset()


def test_a_stopped_experiment_goes_on_with_a_ramp_and_a_shipped_one_ends_with_a_stop() -> None:
    assert fold(CONFIG, [STARTED, action("stop")], START).status == "stopped"
    assert fold(CONFIG, [STARTED, action("stop"), action("ramp", traffic=0.1)], START).is_running
    shipped = fold(CONFIG, [STARTED, action("ship", arm="a")], START)
    assert (shipped.status, shipped.shipped, shipped.traffic) == ("shipped", "a", 0)
    assert fold(CONFIG, [STARTED, action("ship", arm="a"), action("stop")], START).shipped is None


def test_a_second_start_changes_nothing() -> None:
    assert fold(CONFIG, [STARTED, action("start", START + 9000)], START + 9000).started == START


def test_an_experiment_whose_arms_changed_while_it_was_away_does_not_run() -> None:
    """Its units would move between arms, and what was measured before would be counted for others."""
    for change in (
        {"salt": "t"},
        {"arms": [{"name": n, "variant": n, "weight": 2} for n in ("control", "a")]},
    ):
        changed = ExperimentConfig.model_validate(CONFIG.model_dump() | change)
        standing = fold(changed, [STARTED], START)
        assert (standing.status, standing.traffic) == ("changed", 0)
    reslotted = ExperimentConfig.model_validate(CONFIG.model_dump() | {"slots": (0, 10)})
    assert fold(reslotted, [STARTED], START).is_running


def test_actions_on_arms_that_are_gone_are_passed_over() -> None:
    log = [
        STARTED,
        action("rollback", arm="gone"),
        action("ship", arm="gone"),
        action("reinstate", arm="gone"),
    ]
    assert fold(CONFIG, log, START).is_running


def test_when_which_buckets_were_exposed_follows_from_the_log() -> None:
    hour = 3600.0
    log = [
        STARTED,
        action("rollback", START + 2 * hour, arm="a"),
        action("stop", START + 4 * hour),
        action("ramp", START + 5 * hour, traffic=0.1),
        action("ship", START + 5 * hour - 60, arm="b"),  # by a replica whose clock is behind
    ]
    at_1 = {"control": 33, "a": 3334 + 33, "b": 6667 + 33}
    at_5 = {"control": 166, "a": 3334 + 166, "b": 6667 + 166}
    at_50 = {"control": 1667, "b": 6667 + 1666}
    assert runs(CONFIG, log[:4], START + 9 * hour) == [
        Run(START, START + hour, 0.01, at_1),
        Run(START + hour, START + 2 * hour, 0.05, at_5),
        Run(START + 2 * hour, START + 3 * hour, 0.05, {arm: at_5[arm] for arm in ("control", "b")}),
        Run(START + 3 * hour, START + 4 * hour, 0.5, at_50),
        Run(START + 5 * hour, math.inf, 0.1, {"control": 333, "b": 6667 + 333}),
    ]
    assert runs(CONFIG, log, START + 9 * hour)[-1].end == START + 4 * hour
    assert runs(CONFIG, [STARTED], START + 10) == [Run(START, math.inf, 0.01, at_1)]
    assert runs(CONFIG, [], START) == []


def test_an_epoch_is_the_same_in_every_replica_and_says_what_is_exposed() -> None:
    labels = [fold(CONFIG, [STARTED], START + seconds).epoch for seconds in (0.0, 3599.0, 3600.0)]
    assert labels[0] == labels[1] != labels[2]
    log = [STARTED, action("rollback", arm="b"), action("rollback", arm="a"), action("ramp", traffic=0.5)]
    labels = [fold(CONFIG, log[:count], START).epoch for count in (2, 3, 4)]
    assert labels == ["0.01 b", "", ""]  # no treatment arm is left
    assert Epoch.parse("0.01 b") == Epoch(0.01, ("b",))
    for epoch in (Epoch.of(0.1 + 0.2, {"b", "a"}), Epoch.of(1, [])):
        assert Epoch.parse(epoch.label) == epoch
