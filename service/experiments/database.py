"""The experiments' database, SQLite or PostgreSQL: engine, tables, transactions, short timeouts.

A database belongs to one service, by name, because its log says what that service declares. Another service
is refused, and so is a release that does not know the tables.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, inspect, make_url, select

from headroom.models.errors import how_to_install
from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.tables import VERSION, metadata, owner

CONNECT_S = 3
LOCK_S = 3
PREPARATION_S = 60
ANALYSIS_S = 60
"""Limit of one statement that reads all rows of an experiment (PostgreSQL)."""

STATEMENT_S = 5
"""A write or a look-up takes milliseconds; a statement that takes this long hangs."""

ROW_ERRORS = (exc.DataError, exc.IntegrityError, ValueError, OverflowError)
"""What a row that the database cannot hold raises; drivers raise the last two themselves."""

DEFAULT_SERVICE = "headroom"
"""The name of a service that has none."""

EMPTY = "the experiments' database is empty"
"""Why whoever only reads cannot use a database."""

_PREPARATION_LOCK = 0x68656164726F6F6D
"""PostgreSQL's advisory locks have numbers: "headroom" in ASCII."""

_DELETION_LOCK = 0x64656C65


def default_url() -> str:
    """Return the URL of `experiments.db` in `$XDG_STATE_HOME/headroom`, or `~/.local/state/headroom`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(base).absolute() / 'headroom' / 'experiments.db'}"


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


def _is_server(url: URL) -> bool:
    return url.drivername != "sqlite+pysqlite"


def is_made(url: URL) -> bool:
    """Return whether there is a database. Only a SQLite file that nothing has written is known to be none."""
    return _is_server(url) or Path(str(url.database)).exists()


def connect(url: URL) -> Engine:
    """Return an engine for a URL from `parse_url`, not yet connected. Raises ValueError without a driver."""
    if not _is_server(url):
        return _sqlite(url)
    arguments = {
        "connect_timeout": CONNECT_S,
        # A host that vanished: while it owes us an acknowledgement, and while we wait for its answer.
        "tcp_user_timeout": STATEMENT_S * 1000,
        "keepalives_idle": STATEMENT_S,
        "keepalives_interval": 1,
        "keepalives_count": STATEMENT_S,
        "application_name": "headroom",
        "options": f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={LOCK_S}s",
    }
    try:
        return create_engine(
            url,
            pool_size=2,
            max_overflow=8,
            pool_timeout=CONNECT_S,
            pool_pre_ping=True,  # the first use after the server restarted must not fail
            connect_args={name: value for name, value in arguments.items() if name not in url.query},
        )
    except ImportError:
        raise ValueError(f"database_url: PostgreSQL needs psycopg: {how_to_install('postgres')}") from None


def is_postgresql(db: Connection) -> bool:
    """Return whether the connection is to PostgreSQL."""
    return db.dialect.name == "postgresql"


def may_delete(db: Connection) -> bool:
    """Return whether no other transaction deletes rows, and keep it so until this one ends."""
    if not is_postgresql(db):  # SQLite: writing transactions exclude each other
        return True
    return bool(db.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_DELETION_LOCK})").scalar())


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
            if seconds != STATEMENT_S and is_postgresql(connection):
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{int(seconds)}s'")
            yield connection
    except ROW_ERRORS:
        raise
    except (exc.DBAPIError, exc.TimeoutError, OSError) as error:
        raise DatabaseUnavailable from error


@contextmanager
def analysis(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that reads all rows of an experiment, as they are now. Raises DatabaseUnavailable.

    Without statistics, in an experiment's first minute or after pg_upgrade, PostgreSQL would read all lists
    again for every click. Compiling such a query takes it up to a second, and saves none.
    """
    with transaction(engine, write=False, seconds=ANALYSIS_S) as connection:
        if is_postgresql(connection):  # SQLite: each transaction sees one state of the database
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.exec_driver_sql("SET LOCAL enable_nestloop = off")
            connection.exec_driver_sql("SET LOCAL jit = off")
        yield connection


def prepare(engine: Engine, service: str | None) -> str | None:
    """Make the database and its tables, once, even if many replicas start at the same time.

    service: the name of the service that the database is to belong to; None: whoever only reads.
    Return why it cannot be used, as a clause, or None. Raises DatabaseUnavailable.
    """
    if not _is_server(engine.url):
        _make_file(Path(str(engine.url.database)))
    with transaction(engine, write=True, seconds=PREPARATION_S) as connection:
        if is_postgresql(connection):  # SQLite: writing transactions exclude each other
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PREPARATION_S}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PREPARATION_LOCK})")
        is_empty = metadata.tables.keys().isdisjoint(inspect(connection).get_table_names())
        if is_empty and service is None:
            return EMPTY
        if is_empty:
            metadata.create_all(connection)
            connection.execute(owner.insert().values(service=service, version=VERSION))
        return problem(connection, service)


def problem(db: Connection, service: str | None) -> str | None:
    """Return why a service cannot use a database that has tables, as a clause; None if it can.

    service: its name; None: whoever only reads.
    """
    found = db.execute(select(owner)).one() if inspect(db).has_table(owner.name) else None
    if found is not None and found.version > VERSION:
        return (
            "the experiments' database is of a newer release of headroom (tables of version "
            f"{found.version}; this release takes {VERSION}); use that release, or set HEADROOM_DATABASE_URL "
            "to another database"
        )
    if found is None or found.version != VERSION:
        return (
            "the experiments' database is of an earlier release of headroom, or not headroom's; export its "
            "experiments while that release serves it (`headroom experiment export NAME --out F.parquet`), "
            "then move the file away, or set HEADROOM_DATABASE_URL to an empty database"
        )
    if service not in (None, found.service):
        return (
            f"the experiments' database belongs to the service {found.service!r}, and this one is "
            f"{service!r} (`service_name`); set HEADROOM_DATABASE_URL to a database of its own"
        )
    return None


def _sqlite(url: URL) -> Engine:
    """Return an engine of a file, which only `prepare` makes.

    A connection is not used any more once its file is gone or replaced: what it writes would be gone.
    """
    path = Path(str(url.database))

    def connect_to_file() -> sqlite3.Connection:
        name = f"file:{quote(str(path))}?mode=rw"
        return sqlite3.connect(name, uri=True, timeout=LOCK_S, check_same_thread=False, isolation_level=None)

    engine = create_engine(url, pool_size=2, max_overflow=8, pool_timeout=LOCK_S, creator=connect_to_file)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")  # in WAL mode, only a power cut loses data
        record.info["file"] = _file_of(path)

    @event.listens_for(engine, "checkout")
    def check_file(_: Any, record: Any, __: Any) -> None:
        if _file_of(path) != record.info["file"]:
            raise exc.DisconnectionError  # the next connection is to the file that is there, or fails

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("headroom_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _file_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _make_file(path: Path) -> None:
    """Make an empty file (mode 0600) in WAL mode, and its directory (0700), if they are missing.

    Raises DatabaseUnavailable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # closing a file that is there would end SQLite's locks
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            _switch_to_wal(connection)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnavailable from error


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. The statement does not wait for its lock, so retry: replicas may start together."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
