"""One service with cascades for most of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.service.cascades.cascading import CONFIG
from tests.service.in_process import Service, serve


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, CONFIG, threads=2) as running:
        yield running
