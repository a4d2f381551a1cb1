"""What the tests of the service share: a replica in the test's process."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.service.in_process import Service, serve
from tests.service.running import Server, running


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
def two(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real `headroom serve` with two replicas and a cache of scores; it serves a model of its own."""
    directory = tmp_path_factory.mktemp("two")
    model = Path(shutil.copytree(tiny_checkpoint, directory / "model"))
    with running(directory, model, replicas=2, score_cache_size=1000) as server:
        yield server
