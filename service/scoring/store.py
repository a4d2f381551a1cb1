"""The score store: logits on disk, in an SQLite file that the replicas of a node share.

Scores are kept by checkpoint (the SHA-256 of its files) and number format, and within these by a keyed hash
of the mask and of both texts' tokens; the texts themselves are not kept. Each score has a check sum, so that
nothing else is taken for one. Readers never wait (WAL mode), a killed process leaves nothing half written,
and a file that is cut short or overwritten gives an error, where a memory map would end the process
(docs/decisions/018-score-store.md).
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from headroom.models.checkpoint.files import digest_of
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.masks.head_mask import HeadMask
from headroom.service.scoring.row_keys import KEY_BYTES, mask_hash, row_key

APPLICATION_ID = 0x48454144
"""Marks the file as ours: "HEAD"."""

FORMAT = 1
"""The version of the tables. A file of another one is not used."""

CHECK_BYTES = 8

BUSY_S = 10.0
"""How long a writer waits for another one."""

RETRY_S = 0.01
"""Seconds between two attempts to switch on WAL mode, for which SQLite itself does not wait."""

USED_S = 3600
"""A model's last use is written again after this time."""

KEYS_AT_ONCE = 500
"""Keys of one statement; SQLite takes some thousands."""

SHARE_TO_FREE = 0.05
"""A full store forgets at least this share of its scores at once."""

STEPS = 64
"""Eviction (a clock algorithm) passes over the keys in this many steps."""

TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS models (
    model INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL, format TEXT NOT NULL, name TEXT NOT NULL,
    used INTEGER NOT NULL, UNIQUE (digest, format)
);
CREATE TABLE IF NOT EXISTS scores (
    model INTEGER NOT NULL, key BLOB NOT NULL, logits BLOB NOT NULL, recalled INTEGER NOT NULL,
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
"""
"""model: a number that is never given again, because a process may be reading under it when another one
forgets the model. used: the Unix time at which a process last had the model loaded, to within USED_S.
recalled: 1 if the score was asked for since the hand last passed it."""

Row = tuple[EncodedPair, HeadMask]


class StoreUnavailable(ModelError):
    """A store that cannot be opened now, but perhaps later."""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A key that scores are kept under: a checkpoint (the SHA-256 of its files) and a number format.

    name: for people. labels: how many logits a row has.
    """

    digest: str
    number_format: str
    name: str
    labels: int


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The scores of one checkpoint in one number format, counted. used: the Unix time of its last use."""

    name: str
    digest: str
    number_format: str
    scores: int
    used: int


@dataclass(frozen=True, slots=True)
class Found:
    """The scores of some rows, as far as the store has them.

    keys: of each row. logits: float32 bytes by key, of those that are known. unmarked: known keys that are
    not marked as recalled yet.
    """

    keys: list[bytes]
    logits: Mapping[bytes, bytes]
    unmarked: list[bytes]


class ScoreStore:
    """An open store. It belongs to one thread at a time.

    path: the file, which is made if it is not there. max_bytes: how large it may grow; then it forgets scores
    that were not asked for lately. has_evicted: whether it did.
    Raises ModelError if the file is no store, and StoreUnavailable if it cannot be opened now.
    """

    def __init__(self, path: Path, max_bytes: int | None = None, *, create: bool = True) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.has_evicted = False
        with _explained(path):
            self._connection = _connect(path, create=create)
            try:
                self._secret = _prepared(self._connection)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def bytes_used(self) -> int:
        """Return the bytes of the file that hold something."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def register(self, classifier: Classifier) -> ModelKey:
        """Write down that a checkpoint is in use, and return its key. Raises as `model_key` and `keep` do."""
        model = model_key(classifier)
        self.keep(model, {})
        return model

    def look_up(self, model: ModelKey, rows: Sequence[Row]) -> Found:
        """Return what is known of some rows of a model. Raises sqlite3.Error if the file is damaged."""
        hashes: dict[int, blake2b] = {}
        for _, mask in rows:
            if id(mask) not in hashes:
                hashes[id(mask)] = mask_hash(mask, self._secret)
        keys = [row_key(hashes[id(mask)], pair) for pair, mask in rows]
        logits: dict[bytes, bytes] = {}
        unmarked: list[bytes] = []
        entry = self._entry(model)
        if entry is None:
            return Found(keys, logits, unmarked)
        number, _ = entry
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), KEYS_AT_ONCE):
            some = distinct[start : start + KEYS_AT_ONCE]
            places = ",".join("?" * len(some))
            found = self._connection.execute(
                f"SELECT key, logits, recalled FROM scores WHERE model = ? AND key IN ({places})",
                (number, *some),
            )
            for key, value, recalled in found:
                row_logits = value[: 4 * model.labels]
                if self._sealed(number, key, row_logits) != value:
                    continue
                logits[key] = row_logits
                if not recalled:
                    unmarked.append(key)
        return Found(keys, logits, unmarked)

    def keep(self, model: ModelKey, scores: Mapping[bytes, bytes], recalled: Iterable[bytes] = ()) -> None:
        """Keep the logits of rows by their keys, mark others as recalled, and note that the model is in use.

        Raises sqlite3.Error if the disk is full, the file is damaged, or another process writes for too long.
        """
        with self._transaction():
            number = self._use(model)
            self._connection.executemany(
                "INSERT INTO scores VALUES (?, ?, ?, 0) ON CONFLICT DO UPDATE SET logits = excluded.logits",
                [(number, key, self._sealed(number, key, logits)) for key, logits in scores.items()],
            )
            self._connection.executemany(
                "UPDATE scores SET recalled = 1 WHERE model = ? AND key = ?",
                [(number, key) for key in recalled],
            )
        if self.max_bytes is not None and self.bytes_used > self.max_bytes:
            self._forget(self.max_bytes * (1 - SHARE_TO_FREE))
            self.has_evicted = True

    def forget(self, max_bytes: float) -> None:
        """Forget scores until the rest takes at most this many bytes. Raises ModelError if it cannot."""
        with _explained(self.path):
            self._forget(max_bytes)

    def _forget(self, max_bytes: float) -> None:
        """Do what `forget` does.

        A hand goes round the keys, which have no order: what was recalled since it passed last stays for one
        more round, and what was not goes (the clock of Corbató 1968).
        """
        hand = int.from_bytes(self._about("hand") or b"")
        for _ in range(2 * STEPS):
            if self.bytes_used <= max_bytes:
                break
            low = bytes([hand * 256 // STEPS])
            hand = (hand + 1) % STEPS
            high = bytes([hand * 256 // STEPS]) if hand else b"\xff" * (KEY_BYTES + 1)
            with self._transaction():
                passed = "model IN (SELECT model FROM models) AND key >= ? AND key < ? AND recalled = ?"
                self._connection.execute(f"DELETE FROM scores WHERE {passed}", (low, high, 0))
                self._connection.execute(f"UPDATE scores SET recalled = 0 WHERE {passed}", (low, high, 1))
                self._connection.execute("REPLACE INTO about VALUES ('hand', ?)", (hand.to_bytes(1),))

    def models(self) -> list[StoredModel]:
        """Return what the store holds, the models used last first. It reads the whole file."""
        with _explained(self.path):
            found = self._connection.execute(
                "SELECT name, digest, format, count(key), used FROM models LEFT JOIN scores USING (model) "
                "GROUP BY model ORDER BY used DESC, model DESC"
            )
            return [StoredModel(*row) for row in found]

    def forget_models(self, wanted: Callable[[StoredModel], bool]) -> int:
        """Forget the scores of the models that are not wanted, unless a process has begun to use them
        meanwhile. Return how many scores that were."""
        unwanted = [one for one in self.models() if not wanted(one)]
        forgotten = 0
        with _explained(self.path):
            for one in unwanted:
                with self._transaction():
                    self._connection.execute(
                        "DELETE FROM models WHERE digest = ? AND format = ? AND used = ?",
                        (one.digest, one.number_format, one.used),
                    )
                    forgotten += self._connection.execute(
                        "DELETE FROM scores WHERE model NOT IN (SELECT model FROM models)"
                    ).rowcount
        return forgotten

    def shrink(self) -> None:
        """Give the file's free bytes back to the disk. Raises ModelError if others write for too long."""
        with _explained(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make changes that are written whole or not at all."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield

    def _use(self, model: ModelKey) -> int:
        """Note in a transaction that a model is in use. Return its number: a new one if the store has none,
        as after another process has forgotten the model."""
        now = int(time.time())
        entry = self._entry(model)
        if entry is None:
            number = self._connection.execute(
                "INSERT INTO models (digest, format, name, used) VALUES (?, ?, ?, ?)",
                (model.digest, model.number_format, model.name, now),
            ).lastrowid
            assert number is not None
            return number
        number, used = entry
        if used <= now - USED_S:
            self._connection.execute(
                "UPDATE models SET used = ?, name = ? WHERE model = ?", (now, model.name, number)
            )
        return number

    def _entry(self, model: ModelKey) -> tuple[int, int] | None:
        """Return a model's number and the time of its last use; None if the store does not know it."""
        entry: tuple[int, int] | None = self._connection.execute(
            "SELECT model, used FROM models WHERE digest = ? AND format = ?",
            (model.digest, model.number_format),
        ).fetchone()
        return entry

    def _sealed(self, number: int, key: bytes, logits: bytes) -> bytes:
        """Return logits with their check sum. number: their model's."""
        content = number.to_bytes(8) + key + logits
        return logits + blake2b(content, key=self._secret, digest_size=CHECK_BYTES).digest()

    def _about(self, name: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])


def logits_matrix(logits: Sequence[bytes]) -> np.ndarray:
    """Return logits of one model as (rows, labels) float32."""
    return np.frombuffer(b"".join(logits), np.float32).reshape(len(logits), -1)


def model_key(classifier: Classifier) -> ModelKey:
    """Return the key that a checkpoint's scores are kept under. It reads the checkpoint's files: call it when
    they are loaded. Raises OSError or ModelError if they cannot be read."""
    assert classifier.directory is not None
    exact = ", deterministic" if classifier.network.deterministic else ""
    return ModelKey(
        digest=digest_of(classifier.directory),
        number_format=f"{classifier.network.number_format} on {classifier.network.device.type}{exact}",
        name=classifier.name,
        labels=len(classifier.config.labels),
    )


def may_pass(error: BaseException) -> bool:
    """Return whether an error of the store may be over later, as with a lock or a full disk.

    A damaged file is not, nor one whose tables are gone.
    """
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode != sqlite3.SQLITE_ERROR
    return isinstance(error, OSError | StoreUnavailable)


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file, which is made if it is not there. create: may it be made?"""
    if not create and not path.exists():
        raise ModelError("it does not exist")
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA cache_size = -16000")  # KiB
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _prepared(connection: sqlite3.Connection) -> bytes:
    """Return the store's secret. A store that is there is only read, so that a full disk does not matter; in
    a new file, make the tables. Raises ModelError if it is another program's file."""
    connection.execute("BEGIN")
    with connection:
        secret = _secret_of(connection)
    if secret is None:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            secret = _secret_of(connection) or _make_tables(connection)  # another process may have been first
    _use_wal_mode(connection)
    return secret


def _secret_of(connection: sqlite3.Connection) -> bytes | None:
    """Return the secret of the store, None if the file is new. Call it in a transaction, in which another
    process that makes the file is seen whole or not at all. Raises ModelError if it is no store."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise ModelError("it is another program's database")
    if version not in (0, FORMAT):
        raise ModelError(f"its format is {version}, and this version of headroom reads {FORMAT}")
    if not tables:
        return None
    row = connection.execute("SELECT value FROM about WHERE name = 'secret'").fetchone()
    if row is None:
        raise ModelError("it is damaged: its secret is gone")
    return bytes(row[0])


def _make_tables(connection: sqlite3.Connection) -> bytes:
    """Make a new file a store, and return its secret."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for table in TABLES.split(";"):
        connection.execute(table)
    secret = secrets.token_bytes(32)
    connection.execute("INSERT INTO about VALUES ('secret', ?)", (secret,))
    return secret


def _use_wal_mode(connection: sqlite3.Connection) -> None:
    """Have readers and writers not wait for each other. Wait for another process that has the file locked."""
    give_up_at = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_locked or time.monotonic() >= give_up_at:
                raise
        time.sleep(RETRY_S)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors into one that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ModelError) as error:
        kind = StoreUnavailable if may_pass(error) else ModelError
        raise kind(f"score store {path}: {error}") from None
