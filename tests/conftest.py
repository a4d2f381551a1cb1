"""Fixtures that more than one test package needs, and how the tests are shared out among processes."""

from __future__ import annotations

import os

# Before torch and numpy read it: threads that wait for each other sleep. They would spin, and small
# products would take ten times as long when something else needs the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from models.ops.kernel_build import build_all
from models.ops.kernel_levels import levels_of_machine
from tests.checkpoints import write_checkpoint
from tests.service.running import Server, running

settings.load_profile("ci")  # everywhere: the same examples in every run, however long each takes
# Hypothesis also tries constants of the modules that are loaded. A test would get other examples in the whole
# suite than alone, and others again with each edit of a file that it does not use.
providers._get_local_constants = lambda: providers._local_constants

SHARED = {"server": "server", "page_server": "page", "chromium": "page", "start": "benchmarks"}
"""Fixtures that take long to start, and the name of the group of the tests that use them."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a fixture in one process of `pytest -n 2 --dist loadgroup`, long groups first.

    A group is a file, or all tests that use the same running server or browser.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    groups = {item: _group(item) for item in items}
    slow = {groups[item] for item in items if item.get_closest_marker("slow")}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: groups[item] not in slow)


def _group(item: pytest.Item) -> str:
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    return next((group for name, group in SHARED.items() if name in fixtures), item.nodeid.partition("::")[0])


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Compile the kernels of this source, as `make install` does; nothing to do if it did."""
    build_all(levels_of_machine())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give torch the same random numbers, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graded checkpoint with random weights: 3 layers x 4 heads x 32, five grades, 64 positions."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running `headroom serve` with a tiny random model. Tests leave it able to serve."""
    with running(tmp_path_factory.mktemp("server"), tiny_checkpoint) as server:
        yield server
