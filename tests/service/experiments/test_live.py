"""A replica's experiments outlive errors and outages, and a config is in force whole or not at all."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from headroom.service.experiments.admin import MAX_RECORDING_CALLS
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.database import connect, parse_url
from headroom.service.experiments.store import Store
from tests.service.experimenting import BOSS, KEYS, USER, config, eventually, exposed
from tests.service.experiments.comparing import declaration
from tests.service.experiments.making import experiment, in_log, live_of
from tests.service.experiments.postgres import Cluster
from tests.service.experiments.replicas import NEVER, Database, Replica
from tests.service.in_process import QUERY, TITLES, serve


async def test_a_replica_that_watches_no_guardrails_is_not_ready(
    tiny_checkpoint: Path, file_url: str
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=file_url) as service:
        task = service.replica._background[3]
        task.cancel()
        await asyncio.wait([task])
        answer = await service.http.get("/health/ready")
        assert answer.status_code == 503
        assert "background task stopped" in answer.json()["error"]["message"]


async def test_a_unit_that_its_caller_sends_to_a_second_arm_counts_for_neither(file_store: Store) -> None:
    """One replica stored its first exposure only, so it counted for control."""
    live = live_of(file_store)
    live.apply((experiment(),), "v")
    for arm in ("control", "pruned", "control"):
        live.succeeded(live.route(live.ledger.assigner, "u1", arm, "prune20"), 0.01)
    assert live.writer.flush(5.0)
    report = analyse(file_store, in_log(file_store), time.time())
    assert (report.exposures, report.in_both_arms) == ({"control": 0, "pruned": 0}, 1)
    await live.close(1.0)


OUTCOME = {"experiment": "prune20", "unit": "user-0", "metric": "click", "value": 1, "time": 1.0, "id": "o"}


@pytest.fixture
def database(postgres: Cluster) -> str:
    return postgres.create(f"outage_{uuid.uuid4().hex[:8]}")


@contextmanager
def locked_outcomes(database: str) -> Iterator[None]:
    """Nobody else can store outcomes meanwhile."""
    blocker = connect(parse_url(database))
    with blocker.begin() as locked:
        locked.execute(text("LOCK TABLE outcomes IN ACCESS EXCLUSIVE MODE"))
        yield
    blocker.dispose()


async def test_serving_goes_on_without_the_database_and_what_was_buffered_arrives(
    tiny_checkpoint: Path,
    database: str,
    postgres: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=database, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        live = service.replica.live
        told: list[str] = []
        service.metrics.notify_operator = told.append

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
            # The guardrails do not wait for the database either.
            await eventually(lambda: live.ledger.is_down)
            for number in range(100):
                for arm, is_error in (("control", False), ("pruned", True)):
                    window = live.windows.of("prune20", arm)
                    assert window is not None
                    now = live.ledger.monotonic()
                    window.record(now, 0.01, unit=f"of {arm} {number}", is_error=is_error)
            await eventually(lambda: live.ledger.experiments["prune20"].status == "rolled_back")
            await eventually(lambda: "arm pruned rolled back" in caplog.text)
        finally:
            await asyncio.to_thread(postgres.start)
        assert all(line.startswith("the experiments' database fails, and outcomes are") for line in told)
        assert told
        await eventually(lambda: len(exposed(database)) == 30)
        # They are counted after they are stored, so a reader of the database may be ahead of the counter.
        await eventually(lambda: service.metric("headroom_exposures_written_total") == 30)
        store = Store(database)
        await eventually(lambda: "rollback" in [entry.kind for entry in store.log()])
        (rollback,) = (entry for entry in store.log() if entry.kind == "rollback")
        assert "requests failed" in rollback.detail
        store.close()
        assert caplog.text.count("arm pruned rolled back") == 1
        assert (await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})).status_code == 200


async def test_a_slow_database_makes_no_endless_queue_of_outcomes(
    tiny_checkpoint: Path, database: str
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=database) as service:
        with locked_outcomes(database):
            calls = [
                asyncio.create_task(service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]}))
                for _ in range(MAX_RECORDING_CALLS + 5)
            ]
            await eventually(lambda: sum(call.done() for call in calls) >= 5)
        answers = [await call for call in calls]
        refused = [answer for answer in answers if f"{MAX_RECORDING_CALLS} calls" in answer.text]
        assert [answer.status_code for answer in refused] == [503] * 5
        assert (await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})).status_code == 200


async def test_outcomes_that_are_being_stored_are_answered_when_the_replica_stops(
    tiny_checkpoint: Path, database: str
) -> None:
    """They got 500 for a database that takes a moment longer than the scores under way."""
    async with serve(tiny_checkpoint, config(), database_url=database) as service:
        with locked_outcomes(database):
            call = asyncio.create_task(service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]}))
            await eventually(lambda: service.replica._experiments._recording == 1)
            drained = asyncio.create_task(service.replica.drain())
            await asyncio.sleep(0)
            later = await service.http.post("/v1/outcomes", json={"outcomes": [OUTCOME]})
            assert (later.status_code, later.json()["error"]["type"]) == (503, "draining")
        answer = await call
        assert (answer.status_code, answer.json()["accepted"]) == (200, 1)
        await drained


async def test_a_replica_that_never_saw_the_database_assigns_nobody_until_it_does(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """It cannot know what was rolled back."""
    blocked = tmp_path / "state"
    blocked.write_text("a file where a directory is needed")
    async with serve(tiny_checkpoint, config(), database_url=f"sqlite:///{blocked}/x.db") as service:
        await eventually(lambda: service.metric('headroom_experiment_pending{experiment="prune20"}') == 1)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit="user-1")
        assert (answer["assignment"], answer["variant"]) == (None, "full")
        assert service.metric('headroom_experiment_share{experiment="prune20"}') == 0
        assert service.metric("headroom_unit_requests_total") == 1
        assert service.metric('headroom_experiment_requests_total{experiment="prune20"}') == 0
        assert (await service.http.get("/health/ready")).status_code == 200
        blocked.unlink()
        await eventually(lambda: service.replica.live.ledger.experiments["prune20"].is_running)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit="user-1")
        assert answer["assignment"]["experiment"] == "prune20"


def test_a_config_that_waited_for_the_database_does_not_undo_a_later_one(file_url: str) -> None:
    with closing(Database(file_url)) as database:
        database.prepare()
        cut_off, other = Replica(database), Replica(database)
        database.left = 0
        cut_off.ledger.apply(declaration("both"), "v1")
        database.left = NEVER
        database.now += 20
        other.ledger.apply(declaration("right"), "v2")
        database.now += 10
        cut_off.ledger.refresh()
        assert [entry.config_version for entry in database.log()] == ["v2"]
