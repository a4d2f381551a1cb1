"""The sample ratio: arms go, traffic changes, users return, and only real losses alarm.

Users who have met their arm return as often as it makes them: that is an effect, and no loss.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Exposure
from headroom.service.experiments.log import EntryKind
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import check_units
from tests.service.experiments.making import act, experiment, in_log, live_of, logged

THREE = ("control", "b", "c")


class World:
    """One replica's share in an experiment, with users who come as the test says."""

    def __init__(self, store: Store, config: ExperimentConfig) -> None:
        self.store, self.config = store, config
        self.now = 1000.0
        self.live = live_of(store, clock=lambda: self.now)
        self.live.apply((config,), "v")

    def act(self, kind: Any, **more: Any) -> None:
        self.now += 10
        self.store.append(act(kind, self.now, **more))
        self.live.ledger.refresh()

    def arm_of(self, user: int) -> str | None:
        found = self.live.assigner.assign(f"user-{user}")
        return None if found is None else found.arm

    def come(self, users: Iterable[int], lost: str = "", share: float = 0.0) -> None:
        """Users make a request each. lost: the arm of which this share of the users is not written down."""
        rows = []
        for user in users:
            self.now += 0.001
            found = self.live.assigner.assign(f"user-{user}")
            if found is None or (found.arm == lost and user % 100 < 100 * share):
                continue
            rows.append(Exposure("prune20", f"user-{user}", found.arm, found.bucket, self.now, "v"))
        self.store.add_exposures(rows)

    def report(self) -> Any:
        return analyse(self.store, in_log(self.store), self.now, {}).sample_ratio


@pytest.fixture
def worlds(store: Store) -> Iterator[Any]:
    made: list[World] = []

    def make(config: ExperimentConfig) -> World:
        made.append(World(store, config))
        return made[-1]

    yield make
    for world in made:
        world.live.writer.close(1)


def test_an_arm_that_left_is_no_mismatch_and_later_losses_are_found(worlds: Any) -> None:
    world = worlds(experiment(*THREE))
    world.come(range(2400))
    assert not world.report().alarm
    world.act("rollback", arm="c", reason="p99")
    world.come(range(1600, 4800))
    ratio = world.report()
    assert not ratio.alarm
    assert list(ratio.units) == ["control", "b"]
    assert sum(ratio.units.values()) == pytest.approx(2 / 3 * 4800, rel=0.05)
    world.act("ramp", traffic=0.5)
    world.come(range(4800, 12_000), lost="b", share=0.4)
    assert world.report().alarm


def test_users_whom_an_arm_drives_away_are_not_lost(worlds: Any) -> None:
    """Their missing returns made the report invalid, though nothing was lost."""
    world = worlds(experiment())
    arms = {user: world.arm_of(user) for user in range(8000)}
    world.come(range(8000))
    rng = np.random.default_rng(8)
    returning = {"control": 0.5, "pruned": 0.38}
    for traffic in (0.0, 1.0, 0.9):
        world.act("ramp", traffic=traffic)
        world.come(user for user in range(8000) if rng.random() < returning[arms[user]])
        assert not world.report().alarm


LOG: list[tuple[EntryKind, dict[str, Any]]] = [
    ("ramp", {"traffic": 0.2}),
    ("rollback", {"arm": "c"}),
    ("ramp", {"traffic": 0.05}),
    ("ramp", {"traffic": 0.5}),
]
"""A hard life: one action a day after the start, at 1 % at first."""


def alarms(
    experiments: int, weights: dict[str, int], effect: dict[str, float], lost: dict[int, tuple[str, float]]
) -> list[int]:
    """Return in how many simulated experiments each run raised the alarm, with 10 looks a run.

    Users have a bucket each and come at rates of their own, so that many return and some come once.
    effect: by arm, the factor of a user's rate once the user has met the arm.
    lost: by run, the arm of which this share of the users is not written down.
    """
    rng, users = np.random.default_rng(11), 40_000
    arms = list(weights)
    config = experiment(
        arms=[{"name": arm, "variant": arm, "weight": weight} for arm, weight in weights.items()],
        traffic=0.01,
    )
    log = [act(kind, day, **more) for day, (kind, more) in enumerate(LOG, start=1)]
    ran = [logged(config, *log[:count]) for count in range(len(log) + 1)]
    factors = np.array([effect.get(arm, 1.0) for arm in arms])
    ends = np.array([config.spans[arm][1] for arm in arms])
    found = [0] * len(ran)
    for _ in range(experiments):
        bucket, rate = rng.integers(0, 10_000, users), rng.gamma(0.5, 2.0, users)
        arm = np.searchsorted(ends, bucket, side="right")
        known = np.zeros(users, bool)
        counts = np.zeros(len(arms), int)
        for number, run in enumerate(ran):
            exposed = config.exposed(run.traffic, run.rolled_back)
            limits = np.array([config.spans[name][0] + exposed.get(name, -10_000) for name in arms])
            times = rng.exponential(1 / np.maximum(rate * np.where(known, factors[arm], 1.0), 1e-9))
            gone, share = lost.get(number, ("", 0.0))
            is_lost = (rng.random(users) < share) & (arm == (arms.index(gone) if gone else -1))
            is_new = (bucket < limits[arm]) & (times < 1) & ~is_lost & ~known
            alarmed = False
            for look in np.linspace(0.1, 1, 10):
                units = counts + np.bincount(arm[is_new & (times < look)], minlength=len(arms))
                alarmed |= check_units(
                    config, dict(zip(arms, units.tolist(), strict=True)), run.rolled_back
                ).alarm
            counts = units
            known |= is_new
            found[number] += alarmed
    return found


@pytest.mark.parametrize("effect", [{}, {"b": 2.0, "c": 0.4}])
@pytest.mark.parametrize("weights", [{"control": 1, "b": 1, "c": 1}, {"control": 90, "b": 5, "c": 5}])
def test_alarms_without_a_mismatch_stay_under_their_level(
    weights: dict[str, int], effect: dict[str, float]
) -> None:
    """Even if a user comes back twice as often, or hardly ever, for an arm's sake."""
    found = alarms(100, weights, effect, {})
    assert len(found) == 5
    assert sum(found) <= 2  # 500 runs at 0.001


@pytest.mark.parametrize(("run", "arm", "share"), [(1, "b", 0.4), (1, "c", 0.4), (4, "b", 0.4)])
def test_users_lost_in_one_run_are_found_in_that_run(run: int, arm: str, share: float) -> None:
    found = alarms(20, {"control": 1, "b": 1, "c": 1}, {"b": 2.0, "c": 0.4}, {run: (arm, share)})
    assert max(found[:run]) <= 1
    assert found[run] >= 19


@pytest.mark.parametrize("units", [(100, 0), (150, 50)])
def test_a_mismatch_that_anybody_sees_is_found_at_once(units: tuple[int, int]) -> None:
    """ "The arms have the units they should (control 100, b 0)" was said of a chance of 1.6e-30."""
    ratio = check_units(experiment(), dict(zip(("control", "pruned"), units, strict=True)), ())
    assert ratio.alarm
    assert ratio.text.startswith("The arms do not have the units they should")


def test_a_few_units_are_not_said_to_be_right() -> None:
    ratio = check_units(experiment(), {"control": 3, "pruned": 1}, ())
    assert not ratio.alarm
    assert ratio.text.startswith("No lost units are found so far (control 3, pruned 1; p = ")
