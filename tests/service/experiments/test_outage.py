"""The database goes away and comes back; the service does not notice more than it must."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from sqlalchemy import text

from service.experiments.admin import MAX_RECORDING_CALLS
from service.experiments.database import connect, parse_url
from service.experiments.guardrails import Breach
from service.experiments.store import Store
from tests.service.experimenting import BOSS, KEYS, USER, config, eventually, exposed
from tests.service.experiments.postgres import Cluster
from tests.service.in_process import QUERY, TITLES, serve

OUTCOME = {"experiment": "prune20", "unit": "user-0", "metric": "click", "value": 1, "time": 1.0, "id": "o"}


@pytest.fixture
def database(postgres: Cluster) -> str:
    return postgres.create(f"outage_{uuid.uuid4().hex[:8]}")


async def test_serving_goes_on_without_the_database_and_what_was_buffered_arrives(
    tiny_checkpoint: Path, database: str, postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=database, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        live = service.replica.live
        told: list[str] = []
        service.metrics.experiments.tell = told.append

        async def ask(*numbers: int) -> None:
            for number in numbers:
                answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit=f"user-{number}")
                assert answer["assignment"]["experiment"] == "prune20"

        await ask(*range(10))
        await eventually(lambda: len(exposed(database)) == 10)
        await asyncio.to_thread(postgres.stop)
        try:
            monkeypatch.setattr(live.writer, "_capacity", 20)
            await ask(*range(10, 40))
            assert service.metric("headroom_exposures_lost_total") == 10
            await eventually(lambda: service.metric("headroom_exposure_buffer_rows") == 20)
            refused = await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "database_unavailable"
            assert int(refused.headers["retry-after"]) >= 1
            assert service.metric("headroom_experiment_database_errors_total") >= 1
            stop = await service.http.post("/v1/experiments/prune20/stop", json={}, headers=BOSS)
            assert stop.status_code == 503
            shown = await service.http.get("/v1/experiments/prune20")
            assert (shown.status_code, shown.json()["status"], shown.json()["report"]) == (
                200,
                "running",
                None,
            )
            # A guardrail does not wait for the database either.
            live.guard.roll_back("prune20", [Breach("pruned", "p99", "slow")])
            assert live.ledger.standings["prune20"].status == "rolled_back"
        finally:
            await asyncio.to_thread(postgres.start)
        assert all(line.startswith("the experiments' database fails, and outcomes are") for line in told)
        assert told
        await eventually(lambda: len(exposed(database)) == 30)
        # They are counted after they are stored, so a reader of the database may be ahead of the counter.
        await eventually(lambda: service.metric("headroom_exposures_written_total") == 30)
        store = Store(database)
        await eventually(lambda: "rollback" in [action.kind for _, action in store.actions(["prune20"])])
        store.close()
        assert (await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})).status_code == 200


async def test_a_slow_database_makes_no_endless_queue_of_outcomes(
    tiny_checkpoint: Path, database: str
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=database) as service:
        blocker = connect(parse_url(database))
        with blocker.begin() as locked:
            locked.execute(text("LOCK TABLE outcomes IN ACCESS EXCLUSIVE MODE"))
            calls = [
                asyncio.create_task(service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]}))
                for _ in range(MAX_RECORDING_CALLS + 5)
            ]
            await eventually(lambda: sum(call.done() for call in calls) >= 5)
        blocker.dispose()
        answers = [await call for call in calls]
        refused = [answer for answer in answers if f"{MAX_RECORDING_CALLS} calls" in answer.text]
        assert [answer.status_code for answer in refused] == [503] * 5
        assert (await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})).status_code == 200


async def test_a_replica_that_never_saw_the_database_assigns_nobody_until_it_does(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """It cannot know what was rolled back."""
    blocked = tmp_path / "state"
    blocked.write_text("a file where a directory is needed")
    async with serve(tiny_checkpoint, config(), database_url=f"sqlite:///{blocked}/x.db") as service:
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit="user-1")
        assert (answer["assignment"], answer["variant"]) == (None, "full")
        assert (await service.http.get("/health/ready")).status_code == 200
        blocked.unlink()
        await eventually(lambda: service.replica.live.ledger.standings["prune20"].is_running)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit="user-1")
        assert answer["assignment"]["experiment"] == "prune20"
