"""Where an experiment stands follows from its log, alike in every replica."""

from __future__ import annotations

import math
from typing import Any

import pytest

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.state import IDLE, Epoch, Run, fold, identity, runs

START = 1_000_000.0
HOUR = 3600.0
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
BACK = {name: action("rollback", arm=name, reason="p99") for name in ("control", "a", "b", "gone")}


@pytest.mark.parametrize(
    ("hours", "traffic", "next_hours"),
    [(0, 0.01, 1), (0.99, 0.01, 1), (1, 0.05, 3), (2.9, 0.05, 3), (3, 0.5, None), (1000, 0.5, None)],
)
def test_a_ramp_follows_its_schedule(hours: float, traffic: float, next_hours: float | None) -> None:
    standing = fold(CONFIG, [STARTED], START + HOUR * hours)
    assert standing.traffic == traffic
    assert standing.next_step == (None if next_hours is None else START + HOUR * next_hours)


@pytest.mark.parametrize(
    ("log", "status", "traffic", "rolled_back"),
    [
        ([], "running", 0.01, ""),
        # What a person set overrides the schedule.
        ([action("ramp", traffic=0.25)], "running", 0.25, ""),
        # A rollback lasts until the arm is reinstated by name.
        ([BACK["a"]], "running", 0.01, "a"),
        ([BACK["a"], action("ramp", traffic=0.5)], "running", 0.5, "a"),
        ([BACK["a"], BACK["b"]], "rolled_back", 0, "ab"),
        ([BACK["a"], BACK["b"], action("reinstate", arm="b")], "running", 0.01, "a"),
        # A stopped experiment goes on with a ramp, and a shipped one ends with a stop.
        ([action("stop")], "stopped", 0, ""),
        ([action("stop"), action("ramp", traffic=0.1)], "running", 0.1, ""),
        ([action("ship", arm="a")], "shipped", 0, ""),
        ([action("ship", arm="a"), action("stop")], "stopped", 0, ""),
        # A second start, control, and arms that are gone change nothing.
        ([action("start", START + 9000)], "running", 0.01, ""),
        ([BACK["control"], BACK["gone"], action("ship", arm="gone")], "running", 0.01, ""),
        ([action("reinstate", arm="gone")], "running", 0.01, ""),
    ],
)
def test_the_log_says_where_an_experiment_stands(
    log: list[Action], status: str, traffic: float, rolled_back: str
) -> None:
    standing = fold(CONFIG, [STARTED, *log], START)
    assert (standing.status, standing.traffic, standing.started) == (status, traffic, START)
    assert standing.rolled_back == set(rolled_back)
    assert standing.shipped == ("a" if status == "shipped" else None)
    assert standing.is_running == (status == "running")


def test_nothing_runs_before_its_start_is_recorded() -> None:
    assert fold(CONFIG, [], START) == IDLE
    assert not IDLE.is_running


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


def test_when_which_buckets_were_exposed_follows_from_the_log() -> None:
    log = [
        STARTED,
        action("rollback", START + 2 * HOUR, arm="a"),
        action("stop", START + 4 * HOUR),
        action("ramp", START + 5 * HOUR, traffic=0.1),
        action("ship", START + 5 * HOUR - 60, arm="b"),  # by a replica whose clock is behind
    ]
    at_1 = {"control": 33, "a": 3334 + 33, "b": 6667 + 33}
    at_5 = {"control": 166, "a": 3334 + 166, "b": 6667 + 166}
    at_50 = {"control": 1667, "b": 6667 + 1666}
    assert runs(CONFIG, log[:4], START + 9 * HOUR) == [
        Run(START, START + HOUR, 0.01, at_1),
        Run(START + HOUR, START + 2 * HOUR, 0.05, at_5),
        Run(START + 2 * HOUR, START + 3 * HOUR, 0.05, {arm: at_5[arm] for arm in ("control", "b")}),
        Run(START + 3 * HOUR, START + 4 * HOUR, 0.5, at_50),
        Run(START + 5 * HOUR, math.inf, 0.1, {"control": 333, "b": 6667 + 333}),
    ]
    assert runs(CONFIG, log, START + 9 * HOUR)[-1].end == START + 4 * HOUR
    assert runs(CONFIG, [STARTED], START + 10) == [Run(START, math.inf, 0.01, at_1)]
    assert runs(CONFIG, [], START) == []


def test_an_epoch_is_the_same_in_every_replica_and_says_what_is_exposed() -> None:
    labels = [fold(CONFIG, [STARTED], START + seconds).epoch for seconds in (0.0, 3599.0, 3600.0)]
    assert labels[0] == labels[1] != labels[2]
    log = [STARTED, BACK["b"], BACK["a"], action("ramp", traffic=0.5)]
    labels = [fold(CONFIG, log[:count], START).epoch for count in (2, 3, 4)]
    assert labels == ["0.01 b", "", ""]  # no treatment arm is left
    for epoch in (Epoch(0.01, frozenset("b")), Epoch(0.1 + 0.2, frozenset("ba")), Epoch()):
        assert Epoch.parse(epoch.label) == epoch
