"""Guardrails judge the requests of all replicas: what one of them sees is too little, or one caller's."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, text

from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.database import connect, parse_url
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.store import Store
from headroom.service.experiments.windows import FRESH_SECONDS
from tests.service.experimenting import config
from tests.service.experiments.making import live_of
from tests.service.metering import samples

LIMITS: dict[str, Any] = {"min_requests": 50, "score_shift": 0.25, "p99_ms": 100}


@pytest.fixture
async def replicas(url: str) -> AsyncIterator[list[LiveExperiments]]:
    """Three replicas with an experiment, on one database."""
    made = [live_of(Store(url)) for _ in range(3)]
    for live in made:
        await apply(live)
    yield made
    for live in made:
        await live.close(1)


async def apply(live: LiveExperiments, **limits: Any) -> None:
    """Put the experiment in force with these limits."""
    configs = LiveConfig.model_validate(config(guardrails=LIMITS | limits)).experiments
    await asyncio.to_thread(live.apply, configs, f"with {limits}")


def serve(
    live: LiveExperiments,
    arm: str,
    units: Sequence[str],
    *,
    seconds: float = 0.01,
    is_error: bool = False,
    scores: Callable[[], Any] | None = None,
) -> None:
    """Count a request of each unit on one replica."""
    window = live.windows.of("prune20", arm)
    assert window is not None
    for unit in units:
        window.record(live.ledger.monotonic(), seconds, unit=unit, is_error=is_error, scores=scores)


def units(name: str, number: int) -> list[str]:
    return [f"{name}-{index}" for index in range(number)]


async def exchange(replicas: Sequence[LiveExperiments]) -> None:
    """Let each store its windows, and then read those of all."""
    for _ in range(2):
        for live in replicas:
            await live.windows.exchange()


def status(live: LiveExperiments) -> str:
    return live.ledger.experiments["prune20"].status


@pytest.mark.parametrize("kind", ["error_rate", "p99"])
async def test_what_is_bad_on_all_of_them_rolls_back_once(
    replicas: list[LiveExperiments], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    seconds = 0.2 if kind == "p99" else 0.01
    for index, live in enumerate(replicas):
        serve(live, "control", units(f"control-{index}", 20))
        bad = units(f"pruned-{index}", 20)
        serve(live, "pruned", bad, seconds=seconds, is_error=kind == "error_rate")
        live.guard.watch()
        assert status(live) == "running"
    await exchange(replicas)
    for live in replicas:  # each sees the same, before it knows of the others' roll-backs
        live.guard.watch()
        assert status(live) == "rolled_back"
    await asyncio.gather(*(asyncio.to_thread(live.ledger.refresh) for live in replicas))
    for live in replicas:
        history = live.ledger.experiments["prune20"].history
        (action,) = (action for action in history if action.kind == "rollback")
        assert (action.actor, action.arm, action.reason) == ("guardrail", "pruned", kind)
        assert action.detail.startswith("60 of 60 requests on 3 replicas ")
    assert caplog.text.count("arm pruned rolled back") == 3, "each says what it decided"
    series = f'headroom_experiment_rollbacks_total{{experiment="prune20",guardrail="{kind}"}}'
    assert sum(samples(live.metrics.render()).get(series, 0) for live in replicas) == 1


async def test_one_caller_on_all_replicas_takes_no_arm_back(replicas: list[LiveExperiments]) -> None:
    """Without it few requests fail, on each replica and on all."""
    for index, live in enumerate(replicas):
        serve(live, "control", units(f"control-{index}", 100))
        serve(live, "pruned", units(f"pruned-{index}", 100))
        serve(live, "pruned", ["crawler"] * 30, is_error=True)
        serve(live, "pruned", [f"odd-{index}"] * 2, is_error=True)
    await exchange(replicas)
    for live in replicas:
        counts = live.windows.counts("prune20", "pruned")
        assert (counts.requests, counts.errors) == (396, 96)
        assert sorted(counts.errors_by_unit.values()) == [2, 2, 2, 90]
        live.guard.watch()
        assert status(live) == "running"


async def test_a_unit_that_several_replicas_served_has_one_score(replicas: list[LiveExperiments]) -> None:
    """Otherwise 50 units on 40 replicas would pass for 2,000, and differ from control by more than chance."""
    for index, live in enumerate(replicas):
        mine = [*units("everywhere", 40), *units(f"only-{index}", 10)]
        serve(live, "pruned", mine, scores=lambda: np.array([0.3], np.float32))
    await exchange(replicas)
    for live in replicas:
        counts = live.windows.counts("prune20", "pruned")
        assert counts.requests == 150
        assert (counts.scores.sum(), counts.scores[30]) == (70, 70)


async def test_what_is_counted_otherwise_is_not_added(replicas: list[LiveExperiments]) -> None:
    """As while an edit is under way: one replica's slow requests are over another limit."""
    _, second, third = replicas
    await apply(third, p99_ms=500)
    for live in replicas:
        serve(live, "pruned", units("user", 10), seconds=0.2)
    await exchange(replicas)
    assert [live.windows.counts("prune20", "pruned").requests for live in replicas] == [20, 20, 10]
    await apply(third)
    serve(third, "pruned", units("user", 10), seconds=0.2)
    await exchange(replicas)
    for live in replicas:
        counts = live.windows.counts("prune20", "pruned")
        assert (counts.requests, counts.slow, counts.replicas) == (30, 30, 3)
    await apply(second, min_requests=70)  # changes no count
    assert second.windows.counts("prune20", "pruned").requests == 30


async def test_rows_of_another_release_are_not_read(replicas: list[LiveExperiments]) -> None:
    """While releases change, both share a database, and the other's counts may look otherwise."""
    first, second, _ = replicas
    serve(second, "pruned", units("user", 10))
    await exchange(replicas)
    with first.ledger.store.write() as db:
        db.execute(text("UPDATE guardrail_windows SET basis = '1 pruned', counts = 'of another release'"))
    serve(first, "pruned", units("user", 10))
    await first.windows.exchange()
    assert first.windows.counts("prune20", "pruned").requests == 10


async def test_replicas_that_are_gone_count_no_longer_and_leave_no_rows(
    replicas: list[LiveExperiments],
) -> None:
    first, *others = replicas
    for live in replicas:
        serve(live, "pruned", units("user", 10))
    await exchange(replicas)
    assert first.windows.counts("prune20", "pruned").requests == 30
    store = first.ledger.store

    def rows() -> int:
        with store.read() as db:
            return db.execute(text("SELECT count(*) FROM guardrail_windows")).scalar_one()

    async def let_pass(seconds: float) -> None:
        with store.write() as db:
            db.execute(text(f"UPDATE guardrail_windows SET time = time - {seconds}"))
        await first.windows.exchange()  # which stores its own rows anew

    assert rows() == 3
    await let_pass(FRESH_SECONDS + 1)
    assert first.windows.counts("prune20", "pruned").requests == 10
    assert rows() == 1
    for live in others:
        await live.windows.exchange()
    assert rows() == 3


async def test_an_exchange_is_few_statements(file_url: str) -> None:
    live = live_of(Store(file_url))
    await apply(live)
    statements: list[tuple[str, int]] = []

    @event.listens_for(live.ledger.store._engine, "before_cursor_execute")
    def note(*call: Any) -> None:
        parameters = call[3]
        statements.append((call[2].split()[0], len(parameters) if isinstance(parameters, list) else 1))

    await live.windows.exchange()  # nobody was served
    assert statements == [("BEGIN", 1), ("SELECT", 1)]
    statements.clear()
    for arm in ("control", "pruned"):
        serve(live, arm, units(arm, 2000), seconds=0.2, is_error=True, scores=lambda: np.ones(3, np.float32))
    await live.windows.exchange()
    assert statements == [("BEGIN", 1), ("INSERT", 2), ("DELETE", 1), ("SELECT", 1)]
    with live.ledger.store.read() as db:
        sizes = [row[0] for row in db.execute(text("SELECT length(counts) FROM guardrail_windows"))]
    assert len(sizes) == 2
    assert max(sizes) < 2000
    await live.close(1)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_while_the_database_hangs_each_replica_judges_its_own_requests(url: str) -> None:
    now = [1000.0]
    replicas = [live_of(Store(url), monotonic=lambda: now[0]) for _ in range(2)]
    for live in replicas:
        await apply(live)
        serve(live, "control", units("control", 100))
        serve(live, "pruned", units("pruned", 100))
    await exchange(replicas)
    one = replicas[0]
    assert one.windows.counts("prune20", "pruned").replicas == 2
    blocker = connect(parse_url(url))
    with blocker.begin() as locked:
        locked.execute(text("LOCK TABLE guardrail_windows IN ACCESS EXCLUSIVE MODE"))
        hanging = asyncio.create_task(one.windows.exchange())
        began = time.monotonic()
        await asyncio.sleep(0.1)
        now[0] += FRESH_SECONDS + 1
        serve(one, "pruned", units("late", 100), is_error=True)
        one.guard.watch()
        assert status(one) == "rolled_back"
        assert time.monotonic() - began < 1, "nobody waited for the database"
        assert not hanging.done()
    await hanging
    blocker.dispose()
    await asyncio.to_thread(one.ledger.refresh)
    (action,) = (each for each in one.ledger.experiments["prune20"].history if each.kind == "rollback")
    assert re.match("100 of 200 requests failed; the limit", action.detail)
    for live in replicas:
        await live.close(1)
