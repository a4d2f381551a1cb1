"""docs/experiments-data.md says what the database holds and what a report makes of it; so it is run."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.log import Declared, Entry, fold
from headroom.service.experiments.measure import comparison
from headroom.service.experiments.store import Store
from tests.service.experiments.making import act, declares, experiment, measured, send

CLICK = {"name": "click"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'timeline.db'}")) as made:
        yield made


def test_the_timeline_is_what_happens(store: Store) -> None:
    half = experiment(traffic=0.5, metrics=[CLICK])
    whole = experiment(metrics=[CLICK])
    u2 = {"unit": "u2", "metric": "click"}

    def state() -> tuple[str, bool]:
        """The status, and whether a unit of bucket 9,000 has its arm now."""
        found = fold(store.log())["prune20"]
        limit = found.periods[-1].limits.get("pruned", -1)
        return found.status, limit > 9_000

    store.append(Entry("config", 0.0, config_version="half", declared=Declared((half,))))
    assert state() == ("running", False)
    store.add([Exposure("prune20", "u1", "control", 20, 10.0, "half", 5)])
    send(store, [Outcome("prune20", "c1", "u1", "click", 1.0, 20.0)], [half])
    store.append(declares(whole, time=40.0))
    assert state() == ("running", True)
    store.add([Exposure("prune20", "u2", "pruned", 9_000, 50.0, "whole", 5)])
    store.append(declares(time=60.0))
    assert state() == ("paused", False)
    send(store, [Outcome("prune20", "c2", value=1.0, time=70.0, **u2)], [whole])
    store.append(declares(whole, time=80.0))
    assert state() == ("running", True)
    store.append(act("ramp", 90.0, traffic=0.2))
    assert state() == ("running", False)
    send(store, [Outcome("prune20", "c3", value=1.0, time=85.0, **u2)], [whole])
    store.append(act("ship", 110.0, arm="pruned"))
    assert state() == ("shipped", False)
    found = fold(store.log())["prune20"]
    report = analyse(store, found, 120.0)
    (metric,) = report.arms[0].metrics
    assert (metric.control_units, metric.control_value) == (1, 1.0)
    assert (metric.units, metric.value) == (1, 1.0)
    moments = measured(store, whole, whole.metrics[0], 120.0, comparison(found, "pruned"))
    assert float(moments["pruned"].mean[0]) == 1.0, "that of 85, and not that of 70"
    assert [(action.kind, action.time) for action in found.history] == [
        ("start", 0.0),
        ("edit", 40.0),
        ("edit", 60.0),
        ("edit", 80.0),
        ("ramp", 90.0),
        ("ship", 110.0),
    ]
