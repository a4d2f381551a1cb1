"""Fixtures that more than one test package needs: a small random checkpoint, and a service that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from models.ops.kernel_build import build_all
from models.ops.kernel_levels import levels_of_machine
from tests.checkpoints import write_checkpoint
from tests.service.running import Server, running


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Compile the kernels of this source, as `make install` does; nothing to do if it did."""
    build_all(levels_of_machine())


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graded checkpoint with random weights: 3 layers x 4 heads x 32, five grades, 64 positions."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running `headroom serve` with a tiny random model. Tests leave it able to serve."""
    with running(tmp_path_factory.mktemp("server"), tiny_checkpoint) as server:
        yield server
