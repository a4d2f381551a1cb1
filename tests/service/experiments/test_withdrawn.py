"""Units that lose their arm by an edit of the config: what they do meanwhile comes from the default."""

from collections.abc import Iterator
from typing import Any

import pytest

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.assignment import Assigner
from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.events import Action, Exposure, Outcome
from headroom.service.experiments.ledger import DISPUTE_SECONDS
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.measure import comparisons, measure
from headroom.service.experiments.state import identity, withdrawals
from headroom.service.experiments.store import Store
from tests.service.experiments.making import experiment, live_of

SPENT = Metric(name="spent", margin=0.05)
UNITS = {"near": (10, 5010, 100), "far": (4990, 9990, 9900), "chosen": (NO_BUCKET, NO_BUCKET, None)}
"""By name, the bucket of such a unit in control and in pruned, and its slot."""


def declared(**more: Any) -> ExperimentConfig:
    return experiment(metrics=[SPENT], **more)


class World:
    """A database, and replicas on one clock. Outcomes have the values 1, 10, 100 and so on, one a period."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0.0
        self.replicas: list[LiveExperiments] = []
        self.value = 1.0

    def replica(self, *configs: ExperimentConfig) -> LiveExperiments:
        live = live_of(self.store, clock=lambda: self.now)
        self.replicas.append(live)
        self.edit(live, *configs)
        return live

    @staticmethod
    def edit(live: LiveExperiments, *configs: ExperimentConfig, **more: Any) -> None:
        live.apply(Assigner(configs), repr(configs), **more)

    def expose(self) -> None:
        """Each arm has one unit of each name."""
        for index, arm in enumerate(("control", "pruned")):
            self.store.add_exposures(
                [
                    Exposure("prune20", f"{arm} {name}", arm, UNITS[name][index], 1.0, "v", UNITS[name][2])
                    for name in UNITS
                ]
            )

    def behave(self) -> None:
        """Each unit spends ten times what it spent in the last period."""
        rows = [
            Outcome(
                "prune20", f"{arm} {name} {self.value}", f"{arm} {name}", "spent", self.value, self.now + 50
            )
            for arm in ("control", "pruned")
            for name in UNITS
        ]
        self.store.record_outcomes(rows, [declared()])
        self.value *= 10
        self.now += 100

    def spent(self, config: ExperimentConfig) -> dict[str, float]:
        """What the units of an arm spent together, as far as it counts; both arms spent the same."""
        log = self.store.actions(["prune20"])
        during = comparisons(config, withdrawals(config, log))["pruned"]
        moments = measure(self.store, "prune20", SPENT, self.now, during).moments
        totals = {arm: moments[arm].mean[0] * moments[arm].units for arm in ("control", "pruned")}
        assert totals["control"] == pytest.approx(totals["pruned"])
        return totals["control"]


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_traffic_that_an_edit_lowers_and_raises_again_is_in_the_log(world: World) -> None:
    """The edit was today's value of the whole past, so a harmful arm looked like control, and could ship."""
    live = world.replica(declared())
    world.expose()
    world.behave()
    world.edit(live, declared(traffic=0.1))
    assert live.ledger.standing("prune20").traffic == 0.1
    world.behave()  # near and chosen: 1 + 10; far: 1
    assert world.spent(declared(traffic=0.1)) == pytest.approx(11 + 1 + 11)
    world.edit(live, declared(traffic=1.0))
    world.behave()  # far has its arm again, and what it spent between does not count
    assert world.spent(declared()) == pytest.approx(111 + 101 + 111)
    assert [(each.kind, each.actor) for each in live.ledger.history("prune20")] == [
        ("start", "config"),
        ("edit", "config"),
        ("edit", "config"),
    ]


def test_a_unit_that_lost_its_arm_within_its_window_is_left_out(world: World) -> None:
    """It had its arm when the window ended, but not all the time: what it spent is of both variants."""
    live = world.replica(declared())
    world.expose()
    world.behave()
    world.edit(live, declared(traffic=0.1))
    world.behave()
    world.edit(live, declared())
    world.behave()
    log = live.ledger.history("prune20")
    windowed = SPENT.model_copy(update={"window_hours": 250 / 3600})
    during = comparisons(declared(), withdrawals(declared(), log))["pruned"]
    moments = measure(world.store, "prune20", windowed, world.now, during).moments
    assert moments["control"].units == 2  # near and chosen
    assert moments["control"].mean[0] == pytest.approx(111)


def test_what_a_person_ramped_to_stays_whatever_the_file_says(world: World) -> None:
    """An edit of the file to agree with a ramp took the ramp's withdrawal out of the past."""
    live = world.replica(declared())
    world.expose()
    world.behave()
    world.store.record_action(Action("prune20", "ramp", world.now, "boss", traffic=0.1))
    world.behave()
    world.edit(live, declared(traffic=0.1))
    world.behave()
    assert world.spent(declared(traffic=0.1)) == pytest.approx(111 + 1 + 111)
    world.edit(live, declared(traffic=0.5))
    assert live.ledger.standing("prune20").traffic == 0.1


def test_slots_that_an_edit_takes_away_end_their_units(world: World) -> None:
    live = world.replica(declared())
    world.expose()
    world.behave()
    narrow = declared(slots=(0, 5000))
    world.edit(live, narrow)
    world.behave()
    assert world.spent(narrow) == pytest.approx(11 + 1 + 11)
    world.edit(live, declared())
    world.behave()
    assert world.spent(declared()) == pytest.approx(111 + 101 + 111)


def test_units_without_a_stored_slot_do_not_count_while_slots_are_missing(world: World) -> None:
    """Release 0.2 stored none: such units may have left."""
    live = world.replica(declared())
    world.store.add_exposures(
        [
            Exposure("prune20", f"{arm} near", arm, UNITS["near"][i], 1.0, "v")
            for i, arm in enumerate(("control", "pruned"))
        ]
    )
    world.behave()
    world.edit(live, declared(slots=(0, 5000)))
    world.behave()
    assert world.spent(declared()) == pytest.approx(1)


def test_units_get_the_default_while_the_config_has_other_arms_or_lacks_the_experiment(world: World) -> None:
    other_arms = ExperimentConfig.model_validate(
        declared().model_dump()
        | {"arms": [{"name": name, "variant": name, "weight": 2} for name in ("control", "pruned")]}
    )
    live = world.replica(declared())
    world.expose()
    world.behave()
    restarted = world.replica(other_arms)
    assert restarted.ledger.standing("prune20").status == "changed"
    world.behave()
    world.edit(restarted, declared())
    assert restarted.ledger.standing("prune20").status == "running"
    world.behave()
    assert world.spent(declared()) == pytest.approx(3 * 101)
    world.edit(restarted, may_start=False)  # until every replica has it
    world.edit(restarted)
    world.behave()
    world.edit(live, declared())
    world.edit(restarted, declared())
    world.behave()
    assert world.spent(declared()) == pytest.approx(3 * 10_101)


class MayBeAway(Store):
    """A database that the ledger cannot reach for a while."""

    is_away = False

    def check(self) -> None:
        if self.is_away:
            raise DatabaseUnavailable
        super().check()


@pytest.fixture
def away(url: str) -> Iterator[MayBeAway]:
    store = MayBeAway(url)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("is_back_first", [True, False], ids=["database first", "experiment first"])
def test_an_experiment_taken_out_while_the_database_is_away_was_out(
    away: MayBeAway, is_back_first: bool
) -> None:
    """All its units got the default, and what they spent meanwhile counted for their arms."""
    world = World(away)
    live = world.replica(declared())
    world.expose()
    world.behave()
    away.is_away = True
    world.edit(live)
    world.behave()
    if is_back_first:
        away.is_away = False
        live.ledger.refresh()
        world.behave()
        world.edit(live, declared())
    else:
        world.edit(live, declared())
        world.behave()
        away.is_away = False
        live.ledger.refresh()
    live.ledger.refresh()
    world.behave()
    assert [(each.kind, each.time) for each in away.actions(["prune20"])] == [
        ("start", 0),
        ("edit", 100),
        ("edit", 300),
    ]
    assert world.spent(declared()) == pytest.approx(3 * 1001)


def test_slots_taken_away_while_the_database_is_away_end_their_units_then(away: MayBeAway) -> None:
    world = World(away)
    live = world.replica(declared())
    world.expose()
    world.behave()
    away.is_away = True
    narrow = declared(slots=(0, 5000))
    world.edit(live, narrow)
    world.behave()
    away.is_away = False
    live.ledger.refresh()
    assert world.spent(narrow) == pytest.approx(11 + 1 + 11)


def test_a_paused_experiment_is_so_in_the_log(world: World) -> None:
    alone = declared()
    world.store.act(
        ["prune20"],
        lambda *_: Action("prune20", "start", 0.0, "boss", detail=identity(alone)),
        new=alone,
    )
    world.replica()
    world.expose()
    world.behave()
    rival = experiment(name="rival").model_copy(update={"salt": "another"})
    second = world.replica(rival)  # it has the same slots
    assert second.ledger.standing("prune20").status == "paused"
    world.behave()
    world.edit(second)
    assert second.ledger.standing("prune20").status == "running"
    world.behave()
    assert world.spent(alone) == pytest.approx(3 * 101)


def test_replicas_whose_configs_differ_for_a_moment_do_not_fill_the_log(world: World) -> None:
    one = world.replica(declared())
    other = world.replica(declared(traffic=0.5))
    for _ in range(5):
        for live in (one, other):
            world.now += 1
            live.ledger.refresh()
    assert [each.kind for each in world.store.actions(["prune20"])] == ["start", "edit"]
    assert {live.ledger.standing("prune20").traffic for live in (one, other)} == {0.5}


def test_a_replica_that_started_with_a_wrong_config_and_left_ends_nobody_for_good(world: World) -> None:
    """Nobody else would record that the others run the experiment."""
    one = world.replica(declared())
    world.expose()
    world.behave()
    heavier = [
        {"name": "control", "variant": "control", "weight": 2},
        {"name": "pruned", "variant": "pruned"},
    ]
    world.replica(ExperimentConfig.model_validate(declared().model_dump() | {"arms": heavier}))
    for _ in range(int(DISPUTE_SECONDS) + 2):
        world.now += 1
        one.ledger.refresh()
    world.behave()
    assert world.spent(declared()) == pytest.approx(3 * 11)
    assert [each.kind for each in world.store.actions(["prune20"])] == ["start", "edit", "edit"]


def test_an_edit_waits_until_every_replica_has_it(world: World) -> None:
    live = world.replica(declared())
    world.edit(live, declared(traffic=0.5), may_start=False)
    live.ledger.refresh()
    assert live.ledger.standing("prune20").traffic == 1.0
    world.edit(live, declared(traffic=0.5))
    assert live.ledger.standing("prune20").traffic == 0.5


def test_a_log_of_release_0_2_gets_the_terms_once_and_keeps_its_ramps(world: World) -> None:
    """Its start has none, so the traffic of its past is not known; a ramp to less is in the log anyway."""
    world.store.record_action(Action("prune20", "start", 0.0, "config", detail=identity(declared())))
    world.expose()
    world.behave()
    world.store.record_action(Action("prune20", "ramp", world.now, "boss", traffic=0.1))
    live = world.replica(declared(traffic=0.1))
    again = world.replica(declared(traffic=0.1))
    world.behave()
    assert [each.kind for each in again.ledger.history("prune20")] == ["start", "ramp", "edit"]
    assert live.ledger.standing("prune20").status == "running"
    assert world.spent(declared(traffic=0.1)) == pytest.approx(11 + 1 + 11)


def test_a_report_does_not_recommend_a_harmful_arm_after_an_edit_to_less_traffic(store: Store) -> None:
    """Truth: 8 % worse, the margin 5 %. Nine of ten units get the default from day 2 on."""
    world = World(store)
    config = declared(planned_units=400)
    live = world.replica(config)
    pairs = [(arm, number) for number in range(200) for arm in ("control", "pruned")]
    store.add_exposures(
        [
            Exposure("prune20", f"{arm}{number}", arm, 25 * number + 5000 * (arm == "pruned"), 1.0, "v", 0)
            for arm, number in pairs
        ]
    )

    def behave(day: int, treated: range) -> None:
        rows = [
            Outcome(
                *("prune20", f"{day} {arm}{number}", f"{arm}{number}", "spent"),
                (100 + number % 7) * (0.92 if arm == "pruned" and number in treated else 1.0),
                86_400.0 * day,
            )
            for arm, number in pairs
        ]
        store.record_outcomes(rows, [config])

    behave(1, range(200))
    world.now = 2 * 86_400.0
    low = declared(planned_units=400, traffic=0.1)
    world.edit(live, low)
    for day in range(3, 9):
        behave(day, range(20))
    report = analyse(store, low, live.ledger.history("prune20"), 10 * 86_400.0, {})
    assert report.recommendation != "ship"
    (found,) = report.arms[0].metrics
    assert found.relative == pytest.approx(-0.08, abs=0.01)
    # A plan that follows the data would tune the interval to them.
    replanned = declared(planned_units=40, traffic=0.1)
    world.edit(live, replanned)
    again = analyse(store, replanned, live.ledger.history("prune20"), 10 * 86_400.0, {})
    (same,) = again.arms[0].metrics
    assert (same.low, same.high) == pytest.approx((found.low, found.high))
    assert "planned_units of the start, 400; the config's 40 came later" in again.text
