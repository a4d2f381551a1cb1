"""Databases for the tests: a fresh SQLite file, and a fresh database of a real PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.experiments.store import Store
from tests.service.experiments.postgres import Cluster

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
