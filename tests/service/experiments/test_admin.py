"""Where an experiment stands follows from its log: what one replica does, another does not undo unseen."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import pytest

from service.config.settings import LiveConfig
from service.errors import Conflict, DatabaseUnavailable
from service.experiments.admin import Decide, ExperimentAdmin, ramp, ship, stop
from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.guardrails import Breach
from service.experiments.state import fold, identity
from service.experiments.store import Store
from tests.service.experimenting import config
from tests.service.experiments.making import live_of

ASSIGNER = LiveConfig.model_validate(config()).assigner
BY = {"reason": "", "actor": "boss"}


def ramp_to(traffic: float) -> Decide:
    return partial(ramp, traffic=traffic)


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


async def test_what_one_replica_ends_another_that_has_not_seen_it_does_not_change(
    two: tuple[ExperimentAdmin, ExperimentAdmin],
) -> None:
    first, second = two
    await second.act("prune20", ramp_to(0.5), **BY)
    await first.act("prune20", partial(ship, arm="pruned"), **BY)
    assert "has shipped arm 'pruned'; stop it" in await refused(second.act("prune20", ramp_to(1.0), **BY))
    assert (await second.show("prune20", report=False)).status == "running"  # as it knows
    await first.act("prune20", stop, **BY)
    for act in (ramp_to(1.0), stop):
        assert "is stopped already; to go on, give a new" in await refused(second.act("prune20", act, **BY))
    assert kinds(second) == ["start", "ramp", "ship", "stop"]


async def test_an_arm_that_was_rolled_back_does_not_come_back(
    two: tuple[ExperimentAdmin, ExperimentAdmin],
) -> None:
    """Its users would have met the default meanwhile, and be unlike control's."""
    first, second = two
    first._ledger.add([Action("prune20", "rollback", 1.0, "guardrail", arm="pruned")])
    first._ledger.flush()
    assert "is rolled back; to go on, give" in await refused(second.act("prune20", ramp_to(1.0), **BY))
    shipped = refused(second.act("prune20", partial(ship, arm="pruned"), **BY))
    assert "its variant can only become the `default`" in await shipped


class LosesAnAnswer(Store):
    """The database records a roll-back, and the connection breaks before it says so."""

    def record_action(self, action: Action) -> None:
        super().record_action(action)
        if action.kind == "rollback":
            raise DatabaseUnavailable


async def test_an_action_whose_recording_got_no_answer_counts_once(url: str) -> None:
    """It was in the log and in the list of unrecorded ones: a standing that no other replica knows."""
    live = live_of(LosesAnAnswer(url))
    live.apply(ASSIGNER, "v")
    live.guard.roll_back("prune20", [Breach("pruned", "p99", "slow")])
    for _ in range(3):
        live.ledger.refresh()
    log = live.ledger.store.actions(["prune20"])
    assert [action.kind for action in log] == ["start", "rollback"]
    assert live.ledger.history("prune20") == log
    (declared,) = ASSIGNER.experiments
    assert live.ledger.standing("prune20") == fold(declared, log)
    await live.close(1)


START = 1_000_000.0
CONFIG = ExperimentConfig.model_validate(
    {
        "name": "prune20",
        "salt": "s",
        "arms": [{"name": name, "variant": name} for name in ("control", "a", "b")],
        "traffic": 0.5,
    }
)


def action(kind: Any, time: float = START, **more: Any) -> Action:
    return Action(experiment="prune20", kind=kind, time=time, actor="test", **more)


STARTED = action("start", detail=identity(CONFIG))
BACK = {name: action("rollback", arm=name, reason="p99") for name in ("control", "a", "b", "gone")}


@pytest.mark.parametrize(
    ("log", "status", "traffic", "rolled_back"),
    [
        ([], "running", 0.5, ""),
        # What a person set overrides the config.
        ([action("ramp", traffic=0.25)], "running", 0.25, ""),
        # A rollback and a stop are for good, and a stop takes a shipped arm back.
        ([BACK["a"]], "running", 0.5, "a"),
        ([BACK["a"], action("ramp", traffic=0.2)], "running", 0.2, "a"),
        ([BACK["a"], BACK["b"]], "rolled_back", 0, "ab"),
        ([action("stop"), action("ramp", traffic=0.1)], "stopped", 0, ""),
        ([action("ship", arm="a")], "shipped", 0, ""),
        ([action("ship", arm="a"), action("stop")], "stopped", 0, ""),
        # A second start, control, and arms that are gone change nothing.
        ([action("start", START + 9000)], "running", 0.5, ""),
        ([BACK["control"], BACK["gone"], action("ship", arm="gone")], "running", 0.5, ""),
    ],
)
def test_the_log_says_where_an_experiment_stands(
    log: list[Action], status: str, traffic: float, rolled_back: str
) -> None:
    standing = fold(CONFIG, [STARTED, *log])
    assert (standing.status, standing.traffic, standing.started) == (status, traffic, START)
    assert standing.rolled_back == set(rolled_back)
    assert standing.shipped == ("a" if status == "shipped" else None)
    assert standing.is_running == (status == "running")


def test_an_experiment_whose_arms_changed_while_it_was_away_does_not_run() -> None:
    """Its units would move between arms, and what was measured before would be counted for others."""
    for change in (
        {"salt": "t"},
        {"arms": [{"name": n, "variant": n, "weight": 2} for n in ("control", "a")]},
    ):
        changed = ExperimentConfig.model_validate(CONFIG.model_dump() | change)
        standing = fold(changed, [STARTED])
        assert (standing.status, standing.traffic) == ("changed", 0)
    reslotted = ExperimentConfig.model_validate(CONFIG.model_dump() | {"slots": (0, 10)})
    assert fold(reslotted, [STARTED]).is_running
