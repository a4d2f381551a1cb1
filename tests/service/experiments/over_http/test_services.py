"""Services on one PostgreSQL: a wrong file or another service takes nothing from an experiment."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.store import Store
from tests.service.experimenting import BOSS, KEYS, arms, config
from tests.service.experiments.making import send
from tests.service.experiments.postgres import Cluster
from tests.service.in_process import Service, serve

pytestmark = pytest.mark.more

CLICK = {"name": "click", "kind": "proportion", "margin": 0.1}
RUNNING = config(traffic=0.5, metrics=[CLICK])
OTHER = config(name="other", salt="other", metrics=[CLICK])
UNITS = [f"user-{number}" for number in range(40)]
DAY = 86_400.0


@pytest.fixture
def database(postgres: Cluster) -> str:
    return postgres.create(f"services_{uuid.uuid4().hex[:8]}")


@asynccontextmanager
async def serving(model: Path, live: dict[str, Any], database: str, name: str) -> AsyncIterator[Service]:
    """A service on the database, asked by an admin."""
    async with serve(model, live, database_url=database, service_name=name, api_keys=KEYS) as service:
        service.http.headers.update(BOSS)
        yield service


def outcome(number: int, unit: str, at: float) -> dict[str, Any]:
    return {
        "experiment": "prune20",
        "unit": unit,
        "metric": "click",
        "value": 1,
        "time": at,
        "id": f"o{number}",
    }


async def shown(service: Service) -> dict[str, Any]:
    answer: dict[str, Any] = (await service.http.get("/v1/experiments/prune20")).json()
    return answer


def number_of_outcomes(database: str) -> int:
    with closing(Store(database, service=None)) as store, store.read() as db:
        return int(db.exec_driver_sql("SELECT count(*) FROM outcomes").scalar_one())


def fill(database: str) -> None:
    """Outcomes of 40 days ago, of a service whose experiment runs since then."""
    began = time.time() - 45 * DAY
    with closing(Store(database, "production")) as store:
        (experiment,) = (entry.declared.experiments for entry in store.log() if entry.declared)
        names = ("control", "pruned")
        store.add([Exposure("prune20", f"u{n}", names[n % 2], -1, began, "v") for n in range(60)])
        rows = [Outcome("prune20", f"p{n}", f"u{n % 60}", "click", 1.0, began + 5 * DAY) for n in range(120)]
        assert send(store, rows, experiment).accepted == 120


async def test_a_second_service_on_the_database_changes_nothing_of_the_first(
    tiny_checkpoint: Path, database: str
) -> None:
    """Within 1.4 s, it deleted the outcomes of the first one's experiment, and set its traffic."""
    async with serving(tiny_checkpoint, RUNNING, database, "production") as production:
        await asyncio.to_thread(fill, database)
        before = await arms(production, UNITS)
        assert set(before) == {"control", "pruned", None}
        for live in (OTHER, config(traffic=0.1, metrics=[CLICK])):
            async with serving(tiny_checkpoint, live, database, "staging") as staging:
                ready = (await staging.http.get("/health/ready")).json()
                assert "belongs to the service 'production'" in str(ready)
                assert set(await arms(staging, UNITS)) == {None}
                row = outcome(0, "user-0", time.time()) | {"experiment": live["experiments"][0]["name"]}
                await staging.refused("/v1/outcomes", 503, outcomes=[row])
                await asyncio.sleep(3)  # a look of `Retention` and some refreshes
        assert await arms(production, UNITS) == before
        found = await shown(production)
        assert (found["status"], found["traffic"]) == ("running", 0.5)
    assert number_of_outcomes(database) == 120
    with closing(Store(database, "production")) as store:
        assert [entry.kind for entry in store.log()] == ["config"]
