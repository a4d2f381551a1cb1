"""What the tests of the service share: a replica in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from models import Classifier
from tests.service.in_process import Service, serve


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
def clf(tiny_checkpoint: Path) -> Classifier:
    """The network of `service`, to compare with."""
    return Classifier.load(tiny_checkpoint, "cpu", "float32")
