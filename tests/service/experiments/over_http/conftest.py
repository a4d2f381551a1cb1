"""A service with an experiment, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.experimenting import KEYS, USER, config
from tests.service.in_process import Service, serve


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'experiments.db'}"


@pytest.fixture
async def service(tiny_checkpoint: Path, url: str) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, config(), database_url=url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running
