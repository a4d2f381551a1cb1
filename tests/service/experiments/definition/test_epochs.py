"""The sample ratio by epoch: arms come and go, traffic changes, users return, and only real losses alarm.

Users who have met their arm return as often as it makes them: that is an effect, and no loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from service.experiments.analysis.report import analyse
from service.experiments.analysis.report_spec import ReportSpec
from service.experiments.analysis.sample_ratio import ALARM, comparisons
from service.experiments.definition.assignment import Assigner
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.epochs import Epoch
from service.experiments.definition.events import Action, Exposure
from service.experiments.definition.state import fold, identity, runs
from service.experiments.online.ledger import COUNTS_EVERY
from service.experiments.online.live import LiveExperiments
from service.experiments.online.observer import ExperimentObserver
from service.experiments.storage.store import Store


def experiment(weights: dict[str, int], **more: Any) -> ExperimentConfig:
    arms = [{"name": name, "variant": name, "weight": weight} for name, weight in weights.items()]
    return ExperimentConfig.model_validate({"name": "prune20", "salt": "2026-11", "arms": arms, **more})


THREE = {"control": 1, "b": 1, "c": 1}


class World:
    """One replica's share in an experiment, with users who come as the test says."""

    def __init__(self, store: Store, config: ExperimentConfig) -> None:
        self.store, self.config = store, config
        self.now = 1000.0
        self.live = LiveExperiments(store, ExperimentObserver(), clock=lambda: self.now)
        self.assigner = Assigner((config,))
        self.live.apply(self.assigner, "v")
        self._seen: set[tuple[str, str]] = set()

    def act(self, kind: Any, **more: Any) -> None:
        self.now += 10
        action = Action(experiment="prune20", kind=kind, time=self.now, actor="test", **more)
        self.store.record_action(action)
        self.live.ledger.refresh()

    def come(self, users: Iterable[int], lost: str = "", share: float = 0.0) -> None:
        """Users make a request each. lost: the arm of which this share of the users is not written down."""
        rows = []
        for user in users:
            self.now += 0.001
            found = self.assigner.assign(f"user-{user}", {}, self.live.ledger.standings)
            if found is None or (found.arm == lost and user % 100 < 100 * share):
                continue
            if (member := (found.epoch, f"user-{user}")) not in self._seen:
                self._seen.add(member)
                rows.append(
                    Exposure("prune20", member[1], found.arm, found.bucket, self.now, "v", found.epoch)
                )
        self.store.add_exposures(rows)

    def watch(self) -> frozenset[str]:
        """What a look of the guardrails has rolled back."""
        for _ in range(COUNTS_EVERY):
            self.live.ledger.refresh()
        self.live.guard.watch()
        self.live.ledger.refresh()
        return self.live.ledger.standings["prune20"].rolled_back

    def report(self) -> Any:
        spec = ReportSpec.of(self.config, self.live.ledger.history("prune20"), self.now)
        return analyse(self.store, spec, self.now).sample_ratio


@pytest.fixture
def worlds(store: Store) -> Iterator[Any]:
    made: list[World] = []

    def make(config: ExperimentConfig) -> World:
        made.append(World(store, config))
        return made[-1]

    yield make
    for world in made:
        world.live.writer.close(1)
        world.live.ledger._thread.shutdown()


def test_an_arm_that_was_reinstated_does_not_roll_everything_back(worlds: Any) -> None:
    """Three arms, one away for a while in which new users come, who return later."""
    world = worlds(experiment(THREE))
    world.come(range(2400))
    assert world.watch() == set()
    world.act("rollback", arm="c", reason="p99")
    world.come(range(1600, 4800))
    assert world.watch() == {"c"}
    world.act("reinstate", arm="c")
    world.act("ramp", traffic=1.0)
    world.come(range(4700, 4900))
    assert world.watch() == set()  # though c has half the units of the others
    for _ in range(3):
        world.come(range(800, 5600))  # of before, of meanwhile, and new ones
        assert world.watch() == set()
        world.come(range(5600))
        assert world.watch() == set()
    ratio = world.report()
    assert not ratio.alarm
    # The arm that was away has control alone beside it: who returns from that time returns to its arm.
    together, apart = ["control", "b"], ["control", "c"]
    assert [list(epoch.units) for epoch in ratio.epochs] == [list(THREE), together, together, apart]
    counted = ratio.epochs[-1].units
    assert sum(counted.values()) == pytest.approx(2 / 3 * (5600 - 2400), rel=0.05)
    # New users of one arm get lost from now on: that is found in the epoch in which it happens.
    world.act("ramp", traffic=1.0)
    world.come(range(5600, 9600), lost="c", share=0.3)
    assert world.watch() == {"b", "c"}


def test_the_report_compares_returning_units_although_nobody_is_new(worlds: Any) -> None:
    """It passed over such an epoch, in which the guardrail found the loss."""
    world = worlds(experiment(THREE))
    world.come(range(2400))
    world.act("rollback", arm="c", reason="p99")
    world.come(range(2400, 4800))
    world.act("reinstate", arm="c")
    world.come(range(2400, 2460), lost="c", share=1.0)
    ratio = world.report()
    assert not ratio.alarm
    assert [list(epoch.units) for epoch in ratio.epochs] == [list(THREE), ["control", "b"], ["control", "c"]]
    returned = ratio.epochs[-1].units["control"]
    assert f"(now: control {returned}, c 0)" in ratio.text
    world.come(range(2400, 4800), lost="c", share=1.0)
    assert world.report().alarm
    assert world.watch() == {"b", "c"}


def test_users_whom_an_arm_drives_away_are_not_lost(worlds: Any) -> None:
    """Their missing returns rolled back every arm and made the report invalid, though nothing was lost."""
    world = worlds(experiment({"control": 1, "pruned": 1}))
    arms = {
        user: world.assigner.assign(f"user-{user}", {}, world.live.ledger.standings).arm
        for user in range(8000)
    }
    world.come(range(8000))
    assert world.watch() == set()
    rng = np.random.default_rng(8)
    for kind, more in (("stop", {}), ("ramp", {"traffic": 1.0}), ("ramp", {"traffic": 0.9})):
        world.act(kind, **more)
        if kind == "ramp":
            returning = {"control": 0.5, "pruned": 0.38}
            world.come(user for user in range(8000) if rng.random() < returning[arms[user]])
            assert world.watch() == set()
    assert not world.report().alarm
    world.act("rollback", arm="pruned")
    world.act("reinstate", arm="pruned")
    world.act("ramp", traffic=1.0)
    world.come(user for user in range(9000) if rng.random() < returning[arms.get(user, "control")])
    assert world.watch() == set()
    assert not world.report().alarm


def test_units_that_were_lost_are_missed_again_when_they_come_back(worlds: Any) -> None:
    """Nobody can tell them from new ones, and they have met their arm. So a new name and salt is needed."""
    world = worlds(experiment({"control": 1, "pruned": 1}))
    world.come(range(2400), lost="pruned", share=0.4)
    assert world.watch() == {"pruned"}
    world.act("reinstate", arm="pruned")
    world.act("ramp", traffic=1.0)
    world.come(range(3200))
    assert world.watch() == {"pruned"}
    assert world.report().alarm is False  # of the arms that are left


def test_unequal_arms_at_small_traffic_are_expected_as_they_are_exposed(worlds: Any) -> None:
    """95 : 5 at 0.3 % are 28 buckets and 1: no longer accepted, but perhaps stored by an older release."""
    world = worlds(experiment({"control": 95, "pruned": 5}, traffic=0.01))
    world.act("ramp", traffic=0.003)
    epoch = world.live.ledger.standings["prune20"].epoch
    pruned = np.random.default_rng(5).random(14_000) < 1 / 29
    for start in range(0, 14_000, 2000):
        world.store.add_exposures(
            [
                Exposure("prune20", f"u{i}", "pruned" if pruned[i] else "control", 0, world.now, "v", epoch)
                for i in range(start, start + 2000)
            ]
        )
        assert world.watch() == set()
        assert world.live.ledger.sample_ratio(world.config).buckets == {"control": 28, "pruned": 1}
    assert not world.report().alarm


LOG: list[tuple[str, dict[str, Any]]] = [
    ("start", {}),
    ("ramp", {"traffic": 0.2}),
    ("rollback", {"arm": "c"}),
    ("reinstate", {"arm": "c"}),
    ("ramp", {"traffic": 0.05}),
    ("stop", {}),
    ("ramp", {"traffic": 0.5}),
    ("rollback", {"arm": "b"}),
]
"""A hard life: one action a day, at 1 % at first."""


NO_EFFECT: Mapping[str, float] = MappingProxyType({})
EFFECT = MappingProxyType({"b": 2.0, "c": 0.4})


def alarms(
    experiments: int,
    weights: dict[str, int],
    effect: Mapping[str, float],
    lost: dict[int, tuple[str, float]] | None = None,
    users: int = 20_000,
) -> list[int]:
    """In how many simulated experiments each epoch raised the alarm, with 10 looks an epoch.

    Users have a bucket each and come at rates of their own, so that many return and some come once.
    effect: by arm, the factor of a user's rate once the user has met the arm.
    lost: by epoch, the arm of which this share of the users is not written down.
    """
    rng = np.random.default_rng(11)
    config = experiment(weights, traffic=0.01)
    log = [
        Action("prune20", kind, float(day), "test", detail=identity(config), **more)  # type: ignore[arg-type]
        for (kind, more), day in zip(LOG, count(), strict=False)
    ]
    ran = runs(config, log, 10.0)
    epochs = [
        Epoch.parse(fold(config, [one for one in log if one.time <= run.start], run.start).epoch)
        for run in ran
    ]

    @cache
    def labels(number: int, before: int) -> list[str]:
        """The counts to which a user adds in this epoch. before: the epochs of earlier visits, as bits."""
        if not before:
            return [epochs[number].label]
        earlier = [epoch for bit, epoch in enumerate(epochs) if before >> bit & 1]
        return [epoch.label for epoch in epochs[number].returns(earlier)]

    arms, factors = list(weights), np.array([effect.get(arm, 1.0) for arm in weights])
    ends = np.array([config.spans[arm][1] for arm in arms])
    found = [0] * len(ran)
    for _ in range(experiments):
        bucket, rate = rng.integers(0, 10_000, users), rng.gamma(0.5, 2.0, users)
        arm = np.searchsorted(ends, bucket, side="right")
        visits = np.zeros(users, int)  # the epochs in which a user was written down, as bits
        counts: dict[str, Counter[str]] = {}
        for number, run in enumerate(ran):
            limits = np.array([run.limits.get(name, 0) for name in arms])
            times = rng.exponential(1 / np.maximum(rate * np.where(visits, factors[arm], 1.0), 1e-9))
            gone, share = (lost or {}).get(number, ("", 0.0))
            is_lost = (rng.random(users) < share) & (arm == (arms.index(gone) if gone else -1))
            comes = (bucket < limits[arm]) & (times < 1) & ~is_lost
            buckets = config.exposed(epochs[number].traffic, epochs[number].rolled_back)
            so_far, alarmed = counts, False
            for look in np.linspace(0.1, 1, 10):
                came = comes & (times < look)
                counts = {label: Counter(of_label) for label, of_label in so_far.items()}
                kinds = np.bincount(arm[came] << len(ran) | visits[came])
                for kind in np.flatnonzero(kinds):
                    name, before = arms[kind >> len(ran)], int(kind) & ((1 << len(ran)) - 1)
                    for label in labels(number, before):
                        counts.setdefault(label, Counter())[name] += int(kinds[kind])
                compared = comparisons(counts, epochs[number].label, buckets, "control")
                alarmed |= any(units.sequential_p < ALARM for units in compared)
            visits |= np.where(comes, 1 << number, 0)
            found[number] += alarmed
    return found


@pytest.mark.parametrize("effect", [NO_EFFECT, EFFECT])
@pytest.mark.parametrize("weights", [THREE, {"control": 90, "b": 5, "c": 5}])
def test_alarms_without_a_mismatch_stay_under_their_level(
    weights: dict[str, int], effect: Mapping[str, float]
) -> None:
    """Even if a user comes back twice as often, or hardly ever, for an arm's sake."""
    found = alarms(100, weights, effect)
    assert len(found) == 7  # the stop has none
    assert max(found) <= 1  # 100 experiments at 0.001
    assert sum(found) <= 2


@pytest.mark.parametrize(
    ("epoch", "lost"),
    [
        (1, ("b", 0.4)),  # the traffic rose
        (3, ("c", 0.5)),  # it was just reinstated
        (5, ("b", 0.3)),  # after a stop
        (6, ("c", 0.5)),  # another one was just rolled back
    ],
)
def test_users_lost_in_one_epoch_are_found_in_that_epoch(epoch: int, lost: tuple[str, float]) -> None:
    found = alarms(20, THREE, EFFECT, {epoch: lost}, users=60_000)
    assert max(found[:epoch]) <= 1  # in later ones they are new, and too many
    assert found[epoch] >= 19


def test_an_epoch_is_the_same_in_every_replica_and_never_comes_again() -> None:
    config = experiment(THREE, ramp=[[0.1, "1h"]], traffic=0.5)
    log = [Action("prune20", "start", 0.0, "test", detail=identity(config))]
    labels = [fold(config, log, now).epoch for now in (0.0, 3599.0, 3600.0)]
    assert labels[0] == labels[1] != labels[2]
    for kind, more in (("rollback", {"arm": "c"}), ("reinstate", {"arm": "c"}), ("ramp", {"traffic": 0.5})):
        log.append(Action("prune20", kind, 4000.0, "test", **more))  # type: ignore[arg-type]
        labels.append(fold(config, log, 5000.0).epoch)
    assert all(one != other for one, other in pairwise(labels[1:]))
    assert len(set(labels)) == len(labels) - 1
    assert [Epoch.parse(label).label for label in labels] == labels
    assert Epoch.parse(labels[3]) == Epoch(2, 0.5, ("c",))
