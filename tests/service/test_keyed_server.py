"""A real `headroom serve` with API keys, asked through its edge: what the application alone cannot show."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.checkpoints import write_checkpoint
from tests.service.experimenting import BOSS, KEYS, config
from tests.service.running import Server

pytestmark = pytest.mark.more

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("database") / "experiments.db"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[str]:
    """The address of a service with keys and a running experiment."""
    directory = tmp_path_factory.mktemp("keyed")
    model = write_checkpoint(directory / "model")
    environment = {"HEADROOM_API_KEYS": KEYS, "HEADROOM_DATABASE_URL": f"sqlite:///{database}"}
    server = Server(directory, model, live=config(metrics=[{"name": "click"}]), environment=environment)
    try:
        assert server.wait_until_ready(), server.stderr
        yield server.url
    finally:
        server.kill()


@pytest.fixture
def keyed(url: str) -> Iterator[httpx.Client]:
    """A client that sends no key of its own."""
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def test_a_browser_without_a_key_gets_the_page_that_asks_for_one(keyed: httpx.Client) -> None:
    """The edge took the refusal, which is no JSON, for an answer of Serve's own, and made it a 500."""
    refused = keyed.get("/docs", headers=BROWSER)
    assert refused.status_code == 401
    assert refused.headers["content-type"].startswith("text/html")
    assert 'id="token"' in refused.text
    assert keyed.get("/docs/docs.js").status_code == 200
    program = keyed.get("/docs")
    assert (program.status_code, program.json()["error"]["type"]) == (401, "unauthorized")
    assert keyed.get("/docs", headers=BROWSER | BOSS).status_code == 200
    assert keyed.get("/docs/nothing", headers=BROWSER | BOSS).status_code == 404


def test_outcomes_are_not_accepted_into_a_database_that_was_deleted(
    keyed: httpx.Client, database: Path
) -> None:
    """They were answered 200 "accepted", and were gone with the process."""
    keyed.headers.update(BOSS)
    titles = ["angle bracket", "wood screws"]
    score = {"query": "angle", "titles": titles, "unit": "u1"}
    assert keyed.post("/v1/score", json=score).json()["assignment"]
    outcome = {"experiment": "prune20", "unit": "u1", "metric": "click", "value": 1, "time": time.time()}
    first = keyed.post("/v1/outcomes", json={"outcomes": [outcome | {"id": "a"}]})
    assert first.json()["accepted"] == 1, first.text
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()
    refused = keyed.post("/v1/outcomes", json={"outcomes": [outcome | {"id": "b"}]})
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["type"] == "database_unavailable"
    assert not database.exists()
    assert keyed.post("/v1/score", json=score | {"unit": "u2"}).status_code == 200
