"""What the tests of the service share: a replica in the test's process."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.service.in_process import Service, serve
from tests.service.running import Server, restarting


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """The address of a database of experiments, which is not there yet."""
    return f"sqlite:///{tmp_path / 'experiments.db'}"


@pytest.fixture
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    """A replica in this process."""
    async with serve(tiny_checkpoint) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    """A replica for all tests `in_session`: they leave nothing behind and count nothing from 0."""
    async with serve(tiny_checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def two_replicas(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Server]]:
    """Returns `two`."""

    def start() -> Server:
        directory = tmp_path_factory.mktemp("two")
        model = Path(shutil.copytree(tiny_checkpoint, directory / "model"))
        return Server(directory, model, replicas=2, score_cache_size=1000)

    with restarting(start) as ready_server:
        yield ready_server


@pytest.fixture
def two(two_replicas: Callable[[], Server]) -> Server:
    """A real `headroom serve` with two replicas and a cache of scores; it serves a model of its own."""
    return two_replicas()
