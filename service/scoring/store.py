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
"""model: a number that is never given again, because a process may still use it when another one forgets the
model. used: the Unix time at which a process last registered the model. recalled: 1 if the score was asked
for since the hand last passed it."""

Row = tuple[EncodedPair, HeadMask]


@dataclass(frozen=True, slots=True)
class Registered:
    """A checkpoint in a number format, as the store knows it. labels: how many logits a row has."""

    number: int
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
    that were not asked for lately.
    Raises ModelError if the file is no store, or cannot be opened.
    """

    def __init__(self, path: Path, max_bytes: int | None = None, *, create: bool = True) -> None:
        self.path = path
        self.max_bytes = max_bytes
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

    def register(self, classifier: Classifier) -> Registered:
        """Return what stands for a checkpoint. It reads the checkpoint's files: call it when they are loaded.

        Raises sqlite3.Error or OSError.
        """
        assert classifier.directory is not None
        name_of = (digest_of(classifier.directory), _number_format(classifier))
        with self._transaction():
            self._connection.execute(
                "INSERT INTO models (digest, format, name, used) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET used = excluded.used, name = excluded.name",
                (*name_of, classifier.name, int(time.time())),
            )
            (number,) = self._connection.execute(
                "SELECT model FROM models WHERE digest = ? AND format = ?", name_of
            ).fetchone()
        return Registered(number, len(classifier.config.labels))

    def look_up(self, model: Registered, rows: Sequence[Row]) -> Found:
        """Return what is known of some rows of a model. Raises sqlite3.Error if the file is damaged."""
        hashes: dict[int, blake2b] = {}
        for _, mask in rows:
            if id(mask) not in hashes:
                hashes[id(mask)] = mask_hash(mask, self._secret)
        keys = [row_key(hashes[id(mask)], pair) for pair, mask in rows]
        logits: dict[bytes, bytes] = {}
        unmarked = []
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), KEYS_AT_ONCE):
            some = distinct[start : start + KEYS_AT_ONCE]
            places = ",".join("?" * len(some))
            found = self._connection.execute(
                f"SELECT key, logits, recalled FROM scores WHERE model = ? AND key IN ({places})",
                (model.number, *some),
            )
            for key, value, recalled in found:
                row_logits = value[: 4 * model.labels]
                if self._sealed(model, key, row_logits) != value:
                    continue
                logits[key] = row_logits
                if not recalled:
                    unmarked.append(key)
        return Found(keys, logits, unmarked)

    def keep(self, model: Registered, scores: Mapping[bytes, bytes], recalled: Iterable[bytes] = ()) -> None:
        """Keep the logits of rows by their keys, and mark others as recalled.

        Raises sqlite3.Error if the disk is full, the file is damaged, or another process writes for too long.
        """
        with self._transaction():
            if not self._connection.execute(
                "SELECT 1 FROM models WHERE model = ?", (model.number,)
            ).fetchone():
                return  # another process has forgotten the model
            self._connection.executemany(
                "INSERT INTO scores VALUES (?, ?, ?, 0) ON CONFLICT DO UPDATE SET logits = excluded.logits",
                [(model.number, key, self._sealed(model, key, logits)) for key, logits in scores.items()],
            )
            self._connection.executemany(
                "UPDATE scores SET recalled = 1 WHERE model = ? AND key = ?",
                [(model.number, key) for key in recalled],
            )
        if self.max_bytes is not None and self.bytes_used > self.max_bytes:
            self.forget(self.max_bytes * (1 - SHARE_TO_FREE))

    def forget(self, max_bytes: float) -> None:
        """Forget scores until the rest takes at most this many bytes.

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
        """Forget the scores of the models that are not wanted. Return how many scores that were."""
        unwanted = [one for one in self.models() if not wanted(one)]
        with _explained(self.path):
            for one in unwanted:
                with self._transaction():
                    values = (one.digest, one.number_format)
                    self._connection.execute("DELETE FROM models WHERE digest = ? AND format = ?", values)
                    self._connection.execute(
                        "DELETE FROM scores WHERE model NOT IN (SELECT model FROM models)"
                    )
        return sum(one.scores for one in unwanted)

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

    def _sealed(self, model: Registered, key: bytes, logits: bytes) -> bytes:
        """Return logits with their check sum."""
        content = model.number.to_bytes(8) + key + logits
        return logits + blake2b(content, key=self._secret, digest_size=CHECK_BYTES).digest()

    def _about(self, name: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])


def logits_matrix(logits: Sequence[bytes]) -> np.ndarray:
    """Return logits of one model as (rows, labels) float32."""
    return np.frombuffer(b"".join(logits), np.float32).reshape(len(logits), -1)


def _number_format(classifier: Classifier) -> str:
    exact = ", deterministic" if classifier.network.deterministic else ""
    return f"{classifier.network.number_format} on {classifier.network.device.type}{exact}"


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file, which is made if it is not there. create: may it be made?"""
    if not create and not path.exists():
        raise ModelError("it does not exist")
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA cache_size = -16000")  # KiB
    return connection


def _prepared(connection: sqlite3.Connection) -> bytes:
    """Make the tables if the file is new, and return the store's secret. Raises ModelError if it is another
    program's file."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise ModelError("it is another program's database")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            raise ModelError(f"its format is {version}, and this version of headroom reads {FORMAT}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        for table in TABLES.split(";"):
            connection.execute(table)
        connection.execute("INSERT OR IGNORE INTO about VALUES ('secret', ?)", (secrets.token_bytes(32),))
        (secret,) = connection.execute("SELECT value FROM about WHERE name = 'secret'").fetchone()
    return bytes(secret)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors into one that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ModelError) as error:
        raise ModelError(f"score store {path}: {error}") from None
