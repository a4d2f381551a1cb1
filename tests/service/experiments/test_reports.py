"""What any log and any facts lead to is what the plain model of reference.py says.

Each seed makes a log at random, whether or not the rules would let it come about, and facts around its times.
"""

import json
import math
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import BUCKETS, NO_BUCKET
from headroom.service.experiments.definition import INTERLEAVED
from headroom.service.experiments.events import Click, Exposure, Impression, Outcome
from headroom.service.experiments.log import Declared, Entry, World, fold, replay
from headroom.service.experiments.store import Store
from tests.service.experiments import reference
from tests.service.experiments.comparing import (
    CONFIGS,
    FILES,
    FREE,
    ORDER,
    PRUNE,
    TAKER,
    UNITS,
    VARIANTS,
    WINDOW,
    clear,
    declaration,
    facts_of,
    plain,
    rounded,
    summary,
)
from tests.service.experiments.making import send
from tests.service.experiments.postgres import Cluster

Fact = Exposure | Impression | Click | Outcome

START = 1_000_000.0
ROWS = 8
LOGS = 1000
AROUND = (-2 * WINDOW, -WINDOW, -60.0, -1.0, -0.5, 0.0, 0.0, 0.25, 60.0, WINDOW, 2 * WINDOW)
"""Seconds between what belongs together, as an outcome and its unit's exposure."""


def any_log(draw: random.Random) -> list[Entry]:
    """A log that begins with a config. Clocks differ, so times may fall."""
    log = [Entry("config", START, config_version="0", declared=declaration("right"))]
    for number in range(1, draw.randint(1, ROWS)):
        time = START + draw.choice([number, number, number, draw.randint(0, ROWS)]) * WINDOW
        kind = draw.choice(["config", "config", "start", "ramp", "stop", "ship", "rollback", "rollback"])
        if kind == "config":
            declared = declaration(draw.choice([*sorted(FILES), "less", "slots", "slots", "right", "right"]))
            log.append(Entry("config", time, config_version=f"{number}", declared=declared))
        elif kind == "start":
            log.append(Entry("start", time, experiment="free", declared=Declared((FREE,), VARIANTS)))
        else:
            config = draw.choice([PRUNE, PRUNE, ORDER, ORDER, FREE, TAKER])
            arms = [arm.name for arm in config.arms]
            arm = None
            if kind == "ship" or (kind == "rollback" and draw.random() < 0.8):
                arm = draw.choice(arms)
            traffic = draw.choice([0.0, 0.2, 1.0]) if kind == "ramp" else None
            log.append(Entry(kind, time, "boss", config.name, arm=arm, traffic=traffic))  # type: ignore[arg-type]
    return log


def test_the_states_after_any_log_are_those_of_the_model() -> None:
    statuses = set()
    for seed in range(LOGS):
        draw = random.Random(seed)
        log = any_log(draw)
        rows = [plain(entry) for entry in log]
        found = fold(log)
        cut = draw.randint(0, len(log))
        assert replay(replay(World(), log[:cut]), log[cut:]).experiments == found, seed
        for name, experiment in found.items():
            model = reference.state(rows, name)
            assert model is not None
            traffic = model["traffic"] if model["status"] == "running" else 0.0
            assert (experiment.status, experiment.rolled_back, experiment.traffic) == (
                model["status"],
                model["rolled_back"],
                traffic,
            ), (seed, name)
            assert experiment.is_over == model["is_over"] or experiment.status == "paused"
            assert experiment.shipped == model["shipped"]
            assert experiment.end == min(
                (p["since"] for p in reference.periods(rows, name) if p["is_over"]), default=math.inf
            ), (seed, name)
            periods = experiment.periods
            assert [one.until for one in periods[:-1]] == [other.since for other in periods[1:]]
            statuses.add(experiment.status)
    assert statuses == {"running", "stopped", "shipped", "rolled_back", "paused"}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One database for all: each store compiles its statements anew."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('reports') / 'experiments.db'}"
    else:
        cluster: Cluster = request.getfixturevalue("postgres")
        url = cluster.create("reports")
    with closing(Store(url)) as made:
        made.prepare()
        yield made


def any_facts(draw: random.Random, log: list[Entry]) -> list[Fact]:
    """Exposures after the starts, and outcomes, lists and clicks around the times of a log."""
    started = {name: experiment.started for name, experiment in fold(log).items()}

    def moment(near: float | None = None) -> float:
        return (START + WINDOW * draw.randint(0, ROWS) if near is None else near) + draw.choice(AROUND)

    exposures = []
    for _ in range(80):
        config = draw.choice([PRUNE, PRUNE, ORDER, FREE, TAKER])
        arm = draw.choice(list(config.spans))
        position = draw.randrange(*config.spans[arm])
        slot: int | None = draw.randrange(*config.slots)
        if not config.is_interleaved and draw.random() < 0.2:
            position, slot = NO_BUCKET, None
        time = max(moment(), started.get(config.name, START))
        exposures.append(Exposure(config.name, draw.choice(UNITS), arm, position, time, "v", slot))
    lists = []
    for number in range(60):
        unit = draw.choice(UNITS)
        places = tuple(draw.sample(range(4), draw.randint(1, 4)))
        teams = "".join(draw.choice("cts") if index in places else "-" for index in range(4))
        ids = draw.choice([None, ("x", "y", "x", "z")])
        query = draw.choice([None, f"q{number % 4}"])
        name = f"l{number}" if query is None else f"{unit}-{query}"
        lists.append(Impression("order", name, unit, moment(), "v", teams, places, ids, query))
        time = max(moment(), started["order"])
        exposures.append(Exposure("order", unit, INTERLEAVED, draw.randrange(BUCKETS), time, "v", 7000))
    clicks = []
    for number in range(150):
        one = draw.choice(lists)
        what: dict[str, Any] = draw.choice(
            [
                {"index": draw.choice([0, 1, 2, 3, 9])},
                {"rank": draw.randint(1, 5)},
                {"object_id": draw.choice("xyzw"), "rank": draw.choice([None, 1, 2, 3])},
            ]
        )
        clicks.append(
            Click(
                draw.choice(["order", "order", ""]),
                f"c{number}",
                draw.choice([one.unit, one.unit, one.unit, draw.choice(UNITS)]),
                draw.choice(["click", "buy"]),
                draw.choice([one.id, one.id, one.query_id or one.id, "nowhere"]),
                1.0,
                moment(one.time),
                **what,
            )
        )
    outcomes = []
    for number in range(300):
        shown = draw.choice(exposures)
        metric = draw.choice(["click", "buy", "rate"])
        value = float(draw.randint(0, 3))
        near = draw.choice([shown.time, shown.time, None])
        outcomes.append(Outcome(shown.experiment, f"o{number}", shown.unit, metric, value, moment(near)))
    outcomes = [row for row in outcomes if row.experiment != "order"]
    reloads = [replace(one, time=moment(one.time)) for one in lists[:20]]
    return [*exposures, *lists, *reloads, *clicks, *outcomes]


def deliver(store: Store, draw: random.Random, log: list[Entry], facts: list[Fact]) -> None:
    """Store a log in an empty database, and facts in any order, in batches of any size."""
    clear(store)
    for entry in log:
        store.append(entry)
    waiting = draw.sample(facts, len(facts))
    while waiting:
        size = draw.choice([1, 10, 100, 500])
        batch = waiting[:size]
        waiting = waiting[size:]
        store.add([row for row in batch if isinstance(row, Exposure)])
        store.add([row for row in batch if isinstance(row, Impression)])
        send(store, [row for row in batch if isinstance(row, Outcome | Click)], CONFIGS)


@pytest.mark.parametrize("seed", [*range(30), 68, 132])  # in two, an arm's denominators are all 0
def test_a_report_of_any_facts_is_that_of_the_model(store: Store, seed: int) -> None:
    draw = random.Random(seed)
    log = any_log(draw)
    deliver(store, draw, log, any_facts(draw, log))
    now = max(entry.time for entry in log) + draw.choice([5.0, WINDOW, 24 * WINDOW])
    for name, experiment in fold(log).items():
        found = summary(analyse(store, experiment, now))
        expected = reference.report([plain(entry) for entry in log], facts_of(store), name, now)
        assert rounded(found) == rounded(expected), name


@pytest.mark.parametrize("seed", range(2))
def test_the_order_in_which_facts_arrive_changes_no_report(store: Store, seed: int) -> None:
    """Requests, clicks and outcomes come by replicas, queues and retries, so in no order."""
    draw = random.Random(seed)
    log = any_log(draw)
    facts = any_facts(draw, log)
    now = max(entry.time for entry in log) + WINDOW
    reports = []
    for _ in range(3):
        deliver(store, draw, log, facts)
        by_name = {name: analyse(store, experiment, now) for name, experiment in fold(log).items()}
        reports.append({name: json.loads(report.as_json()) for name, report in by_name.items()})
    assert reports[1] == reports[0]
    assert reports[2] == reports[0]
