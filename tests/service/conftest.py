"""The service that the whole-way tests share: started once a session, because it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
