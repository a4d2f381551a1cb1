"""An experiment's intervals over time are those that reports said at those times."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from service.experiments.analysis import MAX_LOOKS, analyse, course, look_times
from service.experiments.events import Action, Exposure, Outcome
from service.experiments.store import Store
from tests.service.experiments.making import experiment, start

HOUR = 3600.0
BEGAN = 1e6
CONFIG = experiment(
    metrics=[
        {"name": "click", "kind": "proportion", "margin": 0.1},
        {"name": "late", "window_hours": 2.0},
        {"name": "spent"},
    ]
)
START = start(CONFIG, BEGAN)


def fill(store: Store, *, until: float) -> None:
    """What happened before a time: a unit each minute for ten hours, and what it did in the next hours."""
    rng = np.random.default_rng(2)
    exposures, outcomes = [], []
    for number in range(600):
        at = BEGAN + 60.0 * number
        arm = ("control", "pruned")[number % 2]
        exposures.append(Exposure("prune20", f"u{number}", arm, 5000 * (number % 2) + number, at, "v"))
        for metric, delay, value in (
            ("click", 30.0, 1.0),
            ("late", 5000.0, 2.0),
            ("spent", 700.0, rng.gamma(2)),
        ):
            if rng.random() < 0.4:
                name = f"{metric}{number}"
                outcomes.append(Outcome("prune20", name, f"u{number}", metric, float(value), at + delay))
    store.record_action(START)
    store.add_exposures([row for row in exposures if row.time <= until])
    store.record_outcomes([row for row in outcomes if row.time <= until], [CONFIG])


def test_a_past_look_is_what_the_report_said_then(
    store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill(store, until=BEGAN + 20 * HOUR)
    moment = BEGAN + 5 * HOUR
    looks = course(store, CONFIG, [START], [moment], {}, seconds=60).looks
    then = Store(f"sqlite:///{tmp_path_factory.mktemp('then')}/then.db")
    try:
        fill(then, until=moment)
        said = analyse(then, CONFIG, [START], moment).arms[0].metrics
    finally:
        then.close()
    for look, report in zip(looks[0].metrics, said, strict=True):
        assert (look.metric, look.units) == (report.metric, report.units)
        ours, theirs = (
            [one.difference, one.low, one.high, one.relative_low, one.relative_high] for one in (look, report)
        )
        assert ours == pytest.approx(theirs)


def test_looks_are_even_stay_where_they_are_and_end_with_the_experiment() -> None:
    times = look_times(CONFIG, [START], BEGAN + 10 * HOUR)
    assert times[0] == BEGAN + HOUR
    assert len(times) == 10
    assert look_times(CONFIG, [START], BEGAN + 10.5 * HOUR) == times
    stop = Action("prune20", "stop", BEGAN + 4 * HOUR, "boss")
    assert look_times(CONFIG, [START, stop], BEGAN + 100 * HOUR)[-1] <= stop.time
    for hours in (0.1, 30, 1e3, 1e5):
        assert len(look_times(CONFIG, [START], BEGAN + hours * HOUR)) <= MAX_LOOKS
    assert look_times(CONFIG, [], BEGAN) == []


def test_a_slow_database_gives_some_looks_now_and_the_rest_later(store: Store) -> None:
    fill(store, until=BEGAN + 20 * HOUR)
    times = look_times(CONFIG, [START], BEGAN + 10 * HOUR)
    known: dict[float, object] = {}
    clock = count().__next__
    first = course(store, CONFIG, [START], times, known, seconds=3, clock=clock)  # type: ignore[arg-type]
    assert not first.complete
    assert 0 < len(first.looks) < len(times)
    second = course(store, CONFIG, [START], times, known, seconds=60)  # type: ignore[arg-type]
    assert second.complete
    assert second.looks[: len(first.looks)] == first.looks
