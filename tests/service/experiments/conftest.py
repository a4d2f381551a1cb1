"""What the tests share: databases of SQLite and of a real PostgreSQL, and a service with an experiment."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headroom.service.experiments.store import Store
from tests.service.experimenting import KEYS, USER, config
from tests.service.experiments.postgres import Cluster
from tests.service.in_process import Service, serve

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL server for the session. A test that stops it starts it again."""
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'experiments.db'}"
    cluster: Cluster = request.getfixturevalue("postgres")
    return cluster.create(f"test{next(_numbers)}")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """An empty SQLite database."""
    return f"sqlite:///{tmp_path / 'experiments.db'}"


@pytest.fixture
def file_store(file_url: str) -> Iterator[Store]:
    """An empty SQLite database, for what does not depend on the kind."""
    with closing(Store(file_url)) as store:
        yield store


@pytest.fixture
async def service(tiny_checkpoint: Path, file_url: str) -> AsyncIterator[Service]:
    """A service with an experiment, in this process."""
    async with serve(tiny_checkpoint, config(), database_url=file_url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running
