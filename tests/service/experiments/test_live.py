"""The loops of a replica's experiments: no error ends them unseen, and a config is in force whole or not."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from service.config.settings import InvalidConfig, LiveConfig
from service.experiments.assignment import Assigner
from service.experiments.events import Action
from service.experiments.live import RecentlySeen
from service.experiments.store import Store
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import config, eventually
from tests.service.experiments.making import live_of
from tests.service.in_process import QUERY, TITLES, serve


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiments.db"


def sql(path: Path, statement: str) -> Any:
    """Run one statement on the database without the service, and return the first row."""
    with closing(sqlite3.connect(path, timeout=10)) as db, db:
        return db.execute(statement).fetchone()


async def test_an_unforeseen_error_is_logged_once_and_the_roll_back_after_it_still_comes(
    tiny_checkpoint: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{path}"
    live = config(ramp=[[1.0, "1d"]])  # so that the time of the start is looked at
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        experiments = service.replica.live
        (time,) = sql(path, "SELECT time FROM actions")
        sql(path, "UPDATE actions SET time = 'soon'")  # nothing that a database that is down would raise
        await eventually(lambda: "cannot be kept up" in caplog.text)
        rounds = experiments.ledger._refreshes
        await eventually(lambda: experiments.ledger._refreshes > rounds + 1)
        assert caplog.text.count("cannot be kept up") == 1
        assert (await service.http.get("/health/ready")).status_code == 200

        sql(path, f"UPDATE actions SET time = {time}")
        store = Store(url)
        store.record_action(Action("prune20", "rollback", time, "guardrail", arm="pruned"))
        store.close()
        await eventually(lambda: experiments.ledger.standings["prune20"].status == "rolled_back")


@pytest.mark.parametrize("number", [0, 1])
async def test_a_replica_that_watches_no_guardrails_is_not_ready(
    tiny_checkpoint: Path, path: Path, number: int
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=f"sqlite:///{path}") as service:
        task = service.replica.live._tasks[number]
        task.cancel()
        await asyncio.wait([task])
        answer = await service.http.get("/health/ready")
        assert answer.status_code == 503
        assert "guardrails stopped" in answer.json()["error"]["message"]


async def test_an_edit_may_remove_an_experiment_while_its_start_is_recorded(path: Path) -> None:
    store = Store(f"sqlite:///{path}")
    live = live_of(store)
    reads, go_on = threading.Event(), threading.Event()

    @event.listens_for(store._engine, "after_cursor_execute")
    def pause(*call: Any) -> None:
        if "FROM actions" in call[2] and not reads.is_set():
            reads.set()
            assert go_on.wait(60)

    began = asyncio.create_task(
        asyncio.to_thread(live.apply, LiveConfig.model_validate(config()).assigner, "with")
    )
    try:
        assert await asyncio.to_thread(reads.wait, 60)
        removed = asyncio.create_task(asyncio.to_thread(live.apply, Assigner(), "without"))
        await eventually(lambda: not live.ledger.configs)
        go_on.set()
        await began
        await removed
        assert (live.ledger.configs, live.ledger.config_version) == ((), "without")
    finally:
        go_on.set()
        await live.close(1)


async def test_a_config_that_the_database_refuses_changes_nothing(
    tiny_checkpoint: Path, path: Path, tmp_path: Path
) -> None:
    async with serve(tiny_checkpoint, config(slots=[0, 5000]), database_url=f"sqlite:///{path}") as service:

        async def seen() -> list[Any]:
            paths = ("/v1/models", "/v1/variants", "/v1/masks", "/v1/experiments")
            found = [(await service.http.get(path)).json() for path in paths]
            units = [f"user-{number}" for number in range(10)]
            answers = [
                await service.post("/v1/score", query=QUERY, titles=TITLES, unit=unit) for unit in units
            ]
            for experiment in found[-1]["experiments"]:  # what requests add to
                experiment["arms"] = experiment["guardrails"] = None
            return [*found, [(answer["variant"], answer["assignment"]) for answer in answers]]

        before = await seen()
        sql(
            path,
            "CREATE TRIGGER no BEFORE INSERT ON actions WHEN NEW.experiment = 'other' "
            "BEGIN SELECT RAISE(ABORT, 'the salt cannot be stored'); END",
        )
        edited = config(slots=[0, 5000], traffic=0.5)
        checkpoint = str(write_checkpoint(tmp_path / "new", seed=4))
        edited["variants"].append({"name": "new", "checkpoint": checkpoint})
        other = {"name": "other", "salt": "other", "slots": [5000, 10_000]}
        edited["experiments"].append(edited["experiments"][0] | other)
        with pytest.raises(InvalidConfig, match=r"^experiments: .* the salt cannot be stored$"):
            await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate(edited))
        assert await seen() == before
        assert (await service.http.get("/v1/models")).headers["x-config-version"] == before[1][
            "config_version"
        ]

        sql(path, "DROP TRIGGER no")
        await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate(edited))
        listed = (await service.http.get("/v1/experiments")).json()["experiments"]
        assert [(found["name"], found["status"]) for found in listed] == [
            ("prune20", "running"),
            ("other", "running"),
        ]


def test_a_unit_is_new_once_and_again_when_its_event_was_lost() -> None:
    seen = RecentlySeen()
    assert [seen.add(("e", "u")), seen.add(("e", "u")), seen.add(("f", "u"))] == [True, False, True]
    seen.forget(("e", "u"))
    assert seen.add(("e", "u"))


def test_the_latest_are_known_and_one_that_keeps_coming_is_not_forgotten() -> None:
    seen = RecentlySeen(capacity=100)
    assert seen.add("often")
    for number in range(10_000):
        seen.add(number)
        assert number % 50 or not seen.add("often")
    assert [seen.add(number) for number in range(9_901, 10_000)] == [False] * 99
    assert len(seen._members) == 100
