"""The sample ratio by epoch: arms come and go, traffic changes, users return, and only real losses alarm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest

from service.experiments.analysis.report import ReportSpec, analyse
from service.experiments.analysis.sample_ratio import ALARM, sequential_p
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
    assert [list(epoch.units) for epoch in ratio.epochs] == [list(THREE), ["control", "b"], list(THREE)]
    counted = ratio.epochs[-1].units
    assert sum(counted.values()) == 5600
    # Users of one arm get lost from now on: that is found in the epoch in which it happens.
    world.act("ramp", traffic=1.0)
    world.come(range(5600), lost="c", share=0.3)
    assert world.watch() == {"b", "c"}


def test_a_loss_that_was_mended_does_not_come_back_with_the_arm(worlds: Any) -> None:
    """The users who were lost would be new ones, far too many of one arm."""
    world = worlds(experiment({"control": 1, "pruned": 1}))
    world.come(range(2400), lost="pruned", share=0.4)
    assert world.watch() == {"pruned"}
    world.act("reinstate", arm="pruned")
    world.act("ramp", traffic=1.0)
    world.come(range(3200))
    assert world.watch() == set()
    ratio = world.report()
    assert ratio.alarm  # those units are in the results
    assert "has changed since" in ratio.text
    assert ratio.epochs[-1].sequential_p > 0.05


def test_unequal_arms_at_small_traffic_are_expected_as_they_are_exposed(worlds: Any) -> None:
    """95 : 5 at 0.3 % are 28 buckets and 1: no longer accepted, but perhaps stored by an older release."""
    world = worlds(experiment({"control": 95, "pruned": 5}, traffic=0.01))
    world.act("ramp", traffic=0.003)
    assert world.live.ledger.sample_ratio(world.config)[1] == {"control": 28, "pruned": 1}
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
    assert not world.report().alarm
    world.act("ramp", traffic=0.01)
    assert world.live.ledger.sample_ratio(world.config)[1] == {"control": 95, "pruned": 5}


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


def alarms(
    experiments: int, weights: dict[str, int], lost: dict[int, tuple[str, float]] | None = None
) -> list[int]:
    """In how many simulated experiments each epoch raised the alarm, with 20 looks an epoch.

    Users have a bucket each and come at rates of their own, so that many return and some come once.
    lost: by epoch, the arm of which this share of the users is not written down.
    """
    rng = np.random.default_rng(11)
    config = experiment(weights, traffic=0.01)
    log = [
        Action("prune20", kind, float(day), "test", detail=identity(config), **more)  # type: ignore[arg-type]
        for (kind, more), day in zip(LOG, count(), strict=False)
    ]
    users = 6000
    found = []
    spans = config.spans
    for number, run in enumerate(runs(config, log, 10.0)):
        standing = fold(config, [action for action in log if action.time <= run.start], run.start)
        epoch = Epoch.parse(standing.epoch)
        buckets = config.exposed(epoch.traffic, epoch.rolled_back)
        assert {arm: spans[arm][0] + wide for arm, wide in buckets.items()} == run.limits
        rng_users = np.random.default_rng(3)  # the same users, with the same buckets, in every epoch
        alarmed = 0
        for _ in range(experiments):
            bucket = rng_users.integers(0, 10_000, users)
            rate = rng_users.gamma(0.5, 2.0, users)
            first = rng.exponential(1 / np.maximum(rate, 1e-9))  # of the epoch, in days
            looks = np.quantile(first[first < 1], np.linspace(0.05, 1, 20))
            seen = {}
            for arm, limit in run.limits.items():
                times = first[(bucket >= spans[arm][0]) & (bucket < limit)]
                gone, share = (lost or {}).get(number, ("", 0.0))
                if gone == arm:
                    times = times[rng.random(len(times)) >= share]
                seen[arm] = np.searchsorted(np.sort(times), looks, side="right")
            counts = [{arm: int(seen[arm][look]) for arm in seen} for look in range(len(looks))]
            alarmed += any(sequential_p(of_look, buckets) < ALARM for of_look in counts)
        found.append(alarmed)
    return found


@pytest.mark.parametrize("weights", [THREE, {"control": 90, "b": 5, "c": 5}])
def test_alarms_without_a_mismatch_stay_under_their_level(weights: dict[str, int]) -> None:
    found = alarms(300, weights)
    assert len(found) == 7  # the stop has none
    assert max(found) <= 2  # 300 experiments at 0.001
    assert sum(found) <= 4


def test_users_lost_in_one_epoch_are_found_in_that_epoch() -> None:
    found = alarms(60, THREE, {3: ("c", 0.7), 5: ("b", 0.4)})
    assert all(found[epoch] <= 1 for epoch in (0, 1, 2, 4, 6))
    assert found[3] >= 55
    assert found[5] >= 55


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
