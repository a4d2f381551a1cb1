"""Operators, guardrails and edits act on one log: what one does, another does not undo unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import pytest

from service.config.settings import LiveConfig
from service.errors import Conflict, DatabaseUnavailable
from service.experiments.admin import ExperimentAdmin
from service.experiments.assignment import Assigner
from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.guardrails import Breach
from service.experiments.state import fold
from service.experiments.steering import Decide, OperatorRequest, ramp, ship, stop
from service.experiments.store import Store
from tests.service.experimenting import config
from tests.service.experiments.making import experiment, live_of, start

ASSIGNER = LiveConfig.model_validate(config()).assigner
BY = {"reason": "", "actor": "boss"}


def ramp_to(traffic: float) -> Decide:
    return partial(ramp, traffic=traffic, reinstate=[])


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[ExperimentAdmin, ExperimentAdmin]]:
    """Two replicas, which read the log only when told to."""
    lives = [live_of(Store(url)) for _ in range(2)]
    for live in lives:
        live.apply(ASSIGNER, "v")
    first, second = map(ExperimentAdmin, lives)
    yield first, second
    for admin, live in zip((first, second), lives, strict=True):
        admin.close()
        await live.close(1)


def kinds(admin: ExperimentAdmin) -> list[str]:
    admin._ledger.refresh()
    return [action.kind for action in admin._ledger.history("prune20")]


async def refused(call: Awaitable[Any]) -> str:
    with pytest.raises(Conflict) as refusal:
        await call
    return str(refusal.value)


async def test_of_two_ships_at_once_one_is_refused(two: tuple[ExperimentAdmin, ExperimentAdmin]) -> None:
    first, second = two
    answers = await asyncio.gather(
        first.act("prune20", partial(ship, arm="pruned"), **BY),
        second.act("prune20", partial(ship, arm="control"), **BY),
        return_exceptions=True,
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "ExperimentDetail"]
    assert kinds(first) == kinds(second) == ["start", "ship"]


async def test_an_emergency_stop_is_not_undone_by_somebody_who_has_not_seen_it(
    two: tuple[ExperimentAdmin, ExperimentAdmin],
) -> None:
    first, second = two
    await second.act("prune20", ramp_to(0.5), **BY)
    await first.act("prune20", stop, **BY)  # it has not seen the ramp, and stops all the same
    for act in (
        second.act("prune20", ramp_to(1.0), **BY),
        second.act("prune20", partial(ship, arm="pruned"), **BY),
    ):
        assert "changed a moment ago (stop by boss); look at it" in await refused(act)
    assert "is stopped already" in await refused(second.act("prune20", stop, **BY))
    assert kinds(second) == ["start", "ramp", "stop"]
    assert (await second.act("prune20", ramp_to(1.0), **BY)).status == "running"


async def test_a_shipped_experiment_is_not_ramped(two: tuple[ExperimentAdmin, ExperimentAdmin]) -> None:
    first, second = two
    await first.act("prune20", partial(ship, arm="pruned"), **BY)
    assert "has shipped arm 'pruned'" in await refused(second.act("prune20", ramp_to(0.5), **BY))
    assert (await second.show("prune20", report=False)).status == "running"  # as it knows
    assert kinds(second) == ["start", "ship"]


async def test_an_experiment_starts_once_every_replica_has_its_config(url: str) -> None:
    """One replica recorded the start, another refused the edit, and the retry began behind the ramp."""
    now = [0.0]
    live = live_of(Store(url), monotonic=lambda: now[0])
    for _ in range(2):
        live.apply(ASSIGNER, "new", begin=False)
        live.ledger.refresh()
        assert live.ledger.standing("prune20").status == "pending"
        assert live.ledger.store.actions(["prune20"]) == []
        live.apply(Assigner(), "old")  # undone
        live.ledger.begin("new")  # too late
        live.ledger.refresh()
        assert live.ledger.store.actions(["prune20"]) == []
    live.apply(ASSIGNER, "new", begin=False)
    live.ledger.begin("new")
    assert live.ledger.standing("prune20").is_running
    await live.close(1)


async def test_an_edit_that_nobody_confirms_or_undoes_begins_by_itself(url: str) -> None:
    now = [0.0]
    live = live_of(Store(url), monotonic=lambda: now[0])
    live.apply(ASSIGNER, "new", begin=False)
    now[0] = 301.0
    live.ledger.refresh()
    assert live.ledger.standing("prune20").is_running
    await live.close(1)


class LosesAnAnswer(Store):
    """The database records a roll-back, and the connection breaks before it says so."""

    def record_action(self, action: Action) -> None:
        super().record_action(action)
        if action.kind == "rollback":
            raise DatabaseUnavailable


async def test_an_action_whose_recording_got_no_answer_counts_once(url: str) -> None:
    """It was in the log and in the list of unrecorded ones: an epoch that no other replica knows."""
    live = live_of(LosesAnAnswer(url))
    live.apply(ASSIGNER, "v")
    live.guard.roll_back("prune20", [Breach("pruned", "p99", "slow")])
    for _ in range(3):
        live.ledger.refresh()
    log = [action for _, action in live.ledger.store.actions(["prune20"])]
    assert [action.kind for action in log] == ["start", "rollback"]
    assert live.ledger.history("prune20") == log
    (declared,) = ASSIGNER.experiments
    assert live.ledger.standing("prune20") == fold(declared, log, live.ledger.clock())
    await live.close(1)


def back_in(config: ExperimentConfig, log: list[Action], now: float, *arms: str) -> list[Any]:
    """Return the kinds, arms and traffics of what a ramp adds that reinstates arms and names no traffic."""
    request = OperatorRequest(config, len(log), now, "boss", "")
    return [(new.kind, new.arm, new.traffic) for new in ramp(request, log, traffic=None, reinstate=arms)]


def test_an_arm_comes_back_by_name_with_the_traffic_that_it_had() -> None:
    """It got the first step of the schedule, which ended with that."""
    declared = experiment(ramp=[[0.1, "1h"], [0.2, "1d"]], traffic=0.5)
    log = [start(declared), Action("prune20", "ramp", 1.0, "boss", traffic=0.3)]
    log.append(Action("prune20", "rollback", 2.0, "guardrail", arm="pruned"))
    for ended in ([], [Action("prune20", "stop", 3.0, "boss")]):
        so_far, added = [*log, *ended], [("reinstate", "pruned", None), ("ramp", None, 0.3)]
        assert back_in(declared, so_far, 4.0, "pruned") == added
        with pytest.raises(Conflict, match="name those to take in again in `reinstate`: pruned"):
            back_in(declared, so_far, 4.0)


def test_an_arm_that_was_away_while_others_ran_does_not_come_back() -> None:
    """Users who came meanwhile would be new in this arm alone, and the arms could not be compared."""
    declared = experiment("control", "b", "c")
    log = [start(declared)]
    for time, arm in ((1.0, "c"), (2.0, "b")):
        log.append(Action("prune20", "rollback", time, "guardrail", arm=arm))
        with pytest.raises(Conflict, match="give a new experiment another name and salt"):
            back_in(declared, log, 3.0, "c")
    assert back_in(declared, log, 3.0, "b") == [("reinstate", "b", None), ("ramp", None, 1.0)]
