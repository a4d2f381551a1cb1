"""The experiments' database, SQLite or PostgreSQL: engine, transactions, short timeouts."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from models.errors import how_to_install
from service.errors import DatabaseUnavailable
from service.experiments.state_directory import make_private, state_directory

CONNECT_S = 3
LOCK_S = 3
SQLITE_MAGIC = b"SQLite format 3\0"
STATEMENT_S = 5
"""A write or a look-up takes milliseconds; a statement that takes this long hangs."""


def default_url() -> str:
    """Return the URL of `$XDG_STATE_HOME/headroom/experiments.db` (by default under ~/.local/state)."""
    return f"sqlite:///{state_directory() / 'experiments.db'}"


def parse_url(url: str) -> URL:
    """Return the URL with our driver. Raises ValueError with one sentence that shows no password."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):  # such as a port that is not a number
        raise ValueError(
            "database_url: not a URL such as sqlite:////path/file.db or postgresql://user@host/name"
        ) from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ValueError(
            f"database_url: {parsed.drivername} is not supported; use sqlite:// or postgresql://"
        )
    if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:"):
        raise ValueError("database_url: SQLite needs a file, such as sqlite:////path/file.db")
    return parsed.set(drivername="sqlite+pysqlite")


def connect(url: URL) -> Engine:
    """Return an engine for a URL from `parse_url`, not yet connected. Raises ValueError without a driver."""
    if url.drivername == "sqlite+pysqlite":
        return _sqlite(url)
    try:
        return create_engine(
            url,
            pool_size=2,
            max_overflow=6,
            pool_timeout=CONNECT_S,
            pool_pre_ping=True,  # the first use after the server restarted must not fail
            connect_args={
                "connect_timeout": CONNECT_S,
                "tcp_user_timeout": STATEMENT_S * 1000,  # a host that vanished
                "application_name": "headroom",
                "options": f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={LOCK_S}s",
            }
            | dict(url.query),
        )
    except ImportError:
        raise ValueError(f"database_url: PostgreSQL needs psycopg: {how_to_install('postgres')}") from None


def reason_of(error: Exception) -> str:
    """Return one line about an error, in the database's own words if there are any."""
    cause = getattr(error.__cause__, "orig", None) or error.__cause__ or error
    return " ".join(str(cause).split())[:400]


@contextmanager
def transaction(engine: Engine, *, write: bool, seconds: int = STATEMENT_S) -> Iterator[Connection]:
    """Open one transaction.

    write: takes SQLite's write lock at the start, because a reading transaction cannot always get it later.
    seconds: limit of each statement (PostgreSQL).
    Raises DatabaseUnavailable if the database fails. Errors caused by a row's content are raised unchanged.
    """
    try:
        with engine.connect().execution_options(headroom_write=write) as connection, connection.begin():
            if seconds != STATEMENT_S and engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{int(seconds)}s'")
            yield connection
    except (exc.DataError, exc.IntegrityError):
        raise
    except (exc.DBAPIError, exc.TimeoutError, OSError) as error:
        raise DatabaseUnavailable from error


class _Witness:
    """Tells whether the file at a path is still the SQLite database that was there at first.

    It keeps the file open: closing any descriptor of a file ends all locks that this process has on it,
    SQLite's too, and another process may then delete the log that this one writes (sqlite.org,
    "How To Corrupt An SQLite Database File", 2.2). So witnesses of one file share a descriptor, and it is
    closed after the last of them.
    """

    _shared: ClassVar[dict[tuple[int, int], tuple[int, int]]] = {}  # (device, number): descriptor, witnesses
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path
        status = path.stat()
        self._key = (status.st_dev, status.st_ino)
        with self._lock:
            known = self._shared.get(self._key)
            self._file, others = known or (os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0)
            self._shared[self._key] = (self._file, others + 1)

    def holds(self) -> bool:
        """Return whether the path leads to the same file, and it begins as a database does."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        is_same = (status.st_dev, status.st_ino) == self._key
        return is_same and os.pread(self._file, len(SQLITE_MAGIC), 0) == SQLITE_MAGIC

    def close(self) -> None:
        """Close the file, unless another witness needs it. The database's connections must be closed."""
        with self._lock:
            file, witnesses = self._shared.pop(self._key)
            if witnesses > 1:
                self._shared[self._key] = (file, witnesses - 1)
            else:
                os.close(file)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. The statement does not wait for its lock, so retry: replicas may start together."""
    latest = time.monotonic() + LOCK_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > latest:
                raise
            time.sleep(0.01)


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url, pool_size=2, max_overflow=6, pool_timeout=LOCK_S, connect_args={"timeout": LOCK_S}
    )
    path = Path(str(url.database))
    witnesses: list[_Witness] = []  # one, from the first connection until the engine is disposed of

    @event.listens_for(engine, "do_connect")
    def make_file(*_: Any) -> None:
        make_private(path)  # SQLite gives its other two files the same mode

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # begin() below starts the transactions
        _switch_to_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")  # in WAL mode, only a power cut loses data
        if not witnesses:
            witnesses.append(_Witness(path))

    @event.listens_for(engine, "engine_disposed")
    def close(_: Engine) -> None:
        while witnesses:
            witnesses.pop().close()

    @event.listens_for(engine, "checkout")
    def check(*_: Any) -> None:
        # An open connection would go on writing, to a log that nobody can read after a restart.
        if witnesses and not witnesses[0].holds():
            raise sqlite3.DatabaseError(
                f"{path} was damaged, deleted or replaced while in use; stop the service, restore the file "
                f"from a copy, delete {path.name}-wal and {path.name}-shm, and start again"
            )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("headroom_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
