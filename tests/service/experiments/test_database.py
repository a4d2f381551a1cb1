"""The way to the experiments' database: which URLs are taken, and what becomes of a server that is away."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.database import default_url
from headroom.service.experiments.store import Store
from tests.service.experiments.making import exposure
from tests.service.experiments.postgres import Cluster


def test_a_missing_database_is_one_error_and_names_no_password(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = [
        Store("postgresql://user:hunter2@127.0.0.1:1/none"),
        Store(f"sqlite:///{tmp_path / 'file' / 'below.db'}"),
    ]
    for store in broken:
        assert "hunter2" not in repr(store)
        calls: list[Callable[[], object]] = [
            store.prepare,
            lambda s=store: s.add([exposure("a")]),  # type: ignore[misc]
            lambda s=store: s.unit_counts(["prune20"]),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(DatabaseUnavailable) as caught:
                call()
            assert caught.value.status == 503
            assert "hunter2" not in str(caught.value)


def test_a_store_made_while_the_server_was_down_heals(postgres: Cluster) -> None:
    with closing(Store(postgres.create("heals"))) as store:
        postgres.stop()
        try:
            with pytest.raises(DatabaseUnavailable):
                store.add([exposure("a")])
        finally:
            postgres.start()
        assert store.add([exposure("a")]).total() == 1
        postgres.stop()  # and connections of the pool that broke
        postgres.start()
        assert store.add([exposure("b")]).total() == 1


@pytest.mark.parametrize(("query", "idle_seconds"), [("", "5"), ("&keepalives_idle=60", "60")])
def test_a_server_whose_host_vanishes_is_noticed_while_its_answer_is_awaited(
    postgres: Cluster, query: str, idle_seconds: str
) -> None:
    """Else an answer of a host that lost its power is awaited for two hours, Linux's default."""
    url = postgres.create(f"vanishes{idle_seconds}")
    with closing(Store(f"{url}{query}")) as store, store.read() as db:
        used = db.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
        assert used["keepalives_idle"] == idle_seconds
        assert int(used["keepalives_interval"]) * int(used["keepalives_count"]) <= 5
        assert used["tcp_user_timeout"] == "5000"


def test_the_default_is_a_file_that_only_the_user_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/headroom/experiments.db"
    directory = tmp_path / "headroom"
    before = os.umask(0o022)
    try:
        with closing(Store()) as store:
            assert store.add([exposure("a")]).total() == 1
            modes = {file.name: oct(file.stat().st_mode & 0o777) for file in directory.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["experiments.db", "experiments.db-wal", "experiments.db-shm"], "0o600")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_another_process_that_reads_and_ends_loses_nothing_of_this_one(tmp_path: Path) -> None:
    """The last one that closes the database deletes its log. Without our locks, any other is the last one."""
    file = tmp_path / "experiments.db"
    look = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT unit FROM exposures'))"

    def units_elsewhere() -> str:
        return subprocess.run(
            [sys.executable, "-c", look, str(file)], capture_output=True, text=True, check=True
        ).stdout

    beside = Store(f"sqlite:///{file}")
    with closing(Store(f"sqlite:///{file}")) as store:
        for number in range(3):
            store.add([exposure(f"u{number}")])
            if number == 1:
                beside.log()
                beside.close()  # a second store of this process must not end the first one's locks either
            assert f"u{number}" in units_elsewhere()
    assert all(f"u{number}" in units_elsewhere() for number in range(3))
