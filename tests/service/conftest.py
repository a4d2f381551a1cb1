"""What the tests of the service share: a running `headroom serve`, or a replica in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from models import Classifier
from tests.service.in_process import Service, serve
from tests.service.running import Server


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running `headroom serve` with a tiny random model. Tests leave it able to serve."""
    server = Server(tmp_path_factory.mktemp("server"), tiny_checkpoint)
    try:
        line = server.wait_until_ready()
        assert line == f"headroom is ready at {server.url}", server.stderr
        yield server
        assert server.stop() == 0
    finally:
        server.kill()


@pytest.fixture
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    """A replica in this process."""
    async with serve(tiny_checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def clf(tiny_checkpoint: Path) -> Classifier:
    """The network of `service`, to compare with."""
    return Classifier.load(tiny_checkpoint, "cpu", "float32")
