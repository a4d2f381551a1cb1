"""Real services on one PostgreSQL: a wrong file or another service takes nothing from an experiment."""

import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.store import Store
from tests.service.experimenting import config
from tests.service.experiments.making import in_log, send
from tests.service.experiments.postgres import Cluster
from tests.service.experiments.serving import serving

pytestmark = [pytest.mark.more, pytest.mark.timeout(1200)]

CLICK = {"name": "click", "kind": "proportion", "margin": 0.1}
RUNNING = config(traffic=0.5, metrics=[CLICK])
OTHER = config(name="other", salt="other", metrics=[CLICK])
UNITS = [f"user-{number}" for number in range(40)]
DAY = 86_400.0


@pytest.fixture
def database(postgres: Cluster) -> str:
    return postgres.create(f"services_{uuid.uuid4().hex[:8]}")


def outcome(number: int, unit: str, at: float) -> dict[str, Any]:
    return {
        "experiment": "prune20",
        "unit": unit,
        "metric": "click",
        "value": 1,
        "time": at,
        "id": f"o{number}",
    }


def arms(client: httpx.Client) -> list[str | None]:
    found = []
    for unit in UNITS:
        answer = client.post("/v1/score", json={"query": "angle", "titles": ["a", "b"], "unit": unit}).json()
        found.append(answer["assignment"] and answer["assignment"]["arm"])
    return found


def shown(client: httpx.Client) -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/v1/experiments/prune20").json()
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
        store.add_exposures([Exposure("prune20", f"u{n}", names[n % 2], -1, began, "v") for n in range(60)])
        rows = [Outcome("prune20", f"p{n}", f"u{n % 60}", "click", 1.0, began + 5 * DAY) for n in range(120)]
        assert send(store, rows, experiment).accepted == 120


def test_a_second_service_on_the_database_changes_nothing_of_the_first(
    tiny_checkpoint: Path, database: str
) -> None:
    """Within 1.4 s, it deleted the outcomes of the first one's experiment, and set its traffic."""
    with serving(tiny_checkpoint, RUNNING, database_url=database, service_name="production") as production:
        fill(database)
        before = arms(production)
        assert set(before) == {"control", "pruned", None}
        for live in (OTHER, config(traffic=0.1, metrics=[CLICK])):
            with serving(tiny_checkpoint, live, database_url=database, service_name="staging") as staging:
                ready = staging.get("/health/ready").json()
                assert "belongs to the service 'production'" in str(ready)
                assert set(arms(staging)) == {None}
                row = outcome(0, "user-0", time.time()) | {"experiment": live["experiments"][0]["name"]}
                assert staging.post("/v1/outcomes", json={"outcomes": [row]}).status_code == 503
                time.sleep(3)  # a look of `Retention` and some refreshes
        assert arms(production) == before
        assert (shown(production)["status"], shown(production)["traffic"]) == ("running", 0.5)
    assert number_of_outcomes(database) == 120
    with closing(Store(database, "production")) as store:
        assert [entry.kind for entry in store.log()] == ["config"]


def test_a_restart_with_a_wrong_file_is_in_the_log_and_loses_nothing(
    tiny_checkpoint: Path, database: str
) -> None:
    """The report of an arm that loses half went from `stop` to `ship`, and outcomes were `unknown`."""
    options = {"database_url": database, "service_name": "production"}
    with serving(tiny_checkpoint, RUNNING, **options) as first:
        before = arms(first)
        fill(database)
    with serving(tiny_checkpoint, OTHER, **options) as wrong:
        assert shown(wrong)["status"] == "out"
        assert "taken out of the config" in shown(wrong)["history"][-1]["detail"]
        rows = [outcome(number, unit, time.time()) for number, unit in enumerate(UNITS)]
        receipt = wrong.post("/v1/outcomes", json={"outcomes": rows}).json()
        assert (receipt["accepted"], receipt["unknown"]) == (40, 0)
        assert shown(wrong)["report"]["recommendation"] != "invalid"
        time.sleep(3)
    assert number_of_outcomes(database) == 160
    with serving(tiny_checkpoint, RUNNING, **options) as right:
        assert arms(right) == before
        found = shown(right)
        assert found["status"] == "running"
        assert [action["kind"] for action in found["history"]] == ["start", "edit", "edit"]
        # What they did while everybody got the default says nothing about the arms.
        (metric,) = found["report"]["arms"][0]["metrics"]
        assert metric["units"] + metric["control_units"] == 60 + sum(arm is not None for arm in before)
        clicked = metric["value"] * metric["units"] + metric["control_value"] * metric["control_units"]
        assert clicked == pytest.approx(60)
    with closing(Store(database, "production")) as store:
        assert [entry.kind for entry in store.log()] == ["config"] * 3
        assert len(in_log(store).periods) == 3
