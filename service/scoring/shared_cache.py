"""The score cache's second level: logits in a Redis or Valkey server that replicas and nodes share.

A key is a hash of the checkpoint's files (SHA-256), the number format, the mask, and the tokens that the
network reads of both texts; a value is the row's logits with a checksum. So a score is never another model's,
mask's or format's, and texts are not stored. Eviction and persistence are the server's. A server that is
slow, away or full costs a request at most READ_S: its rows are computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from headroom.models.checkpoint.files import digest_of
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError, how_to_install
from headroom.models.masks.head_mask import HeadMask
from headroom.service.engine.threads import PairRow, RowScore
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring.cache import mask_hash, row_key, set_results

if TYPE_CHECKING:
    import redis.asyncio

logger = logging.getLogger("headroom.score_cache")

READ_S = 0.005
"""A request waits for the server at most this long."""

WRITE_S = 1.0
"""Writing a batch of scores, or connecting, is given up after this time."""

PAUSE_S = 1.0
"""Seconds in which a server that cannot be reached is not asked again."""

WAITING_ROWS = 20_000
"""At most this many scores wait to be written; more are not stored."""

PREFIX = b"headroom:1:"
"""Begins every key. The number changes with the form of keys or values."""

KEY_BYTES = 24
"""Nobody finds two rows with the same key of 192 bits, although callers choose texts and masks."""

CHECK_BYTES = 8


def weights_key(classifier: Classifier) -> bytes:
    """Return what names a checkpoint's weights and number format in keys. It reads the checkpoint's files.

    Raises OSError or ModelError if they cannot be read.
    """
    assert classifier.directory is not None
    network = classifier.network
    exact = ", deterministic" if network.deterministic else ""
    order = classifier.config.changed_order
    labels = f", labels {order}" if order else ""  # the order of a row's logits
    kind = f"{network.number_format} {network.device.type}{exact}{labels}"
    return f"{digest_of(classifier.directory)} {kind}".encode()


def row_keys(rows: Sequence[tuple[EncodedPair, HeadMask]], weights: bytes) -> list[bytes]:
    """Return the keys of rows that the same weights score."""
    hashes: dict[int, blake2b] = {}
    for _, mask in rows:
        if id(mask) not in hashes:
            hashes[id(mask)] = mask_hash(mask, weights, size=KEY_BYTES)
    return [PREFIX + row_key(hashes[id(mask)], pair) for pair, mask in rows]


def sealed(key: bytes, logits: bytes) -> bytes:
    """Return the value of a key: the float32 logits and a checksum of both."""
    return logits + blake2b(key + logits, digest_size=CHECK_BYTES).digest()


def unsealed(key: bytes, value: bytes | None, labels: int) -> bytes | None:
    """Return the logits of a value; None if there is none, or if it is not what was stored under the key."""
    if value is None or len(value) != 4 * labels + CHECK_BYTES:
        return None
    logits = value[:-CHECK_BYTES]
    return logits if sealed(key, logits) == value else None


class SharedCache:
    """The scores that a Redis or Valkey server keeps, as a replica uses them on its event loop.

    url: redis://, rediss:// or unix://. Raises ModelError if the package `redis` is not installed.
    """

    def __init__(self, url: str, metrics: Metrics) -> None:
        check_url(url, "score_cache")
        self._client = _client(url)
        self._metrics = metrics
        self._weights: WeakKeyDictionary[Classifier, bytes] = WeakKeyDictionary()
        self._waiting: dict[bytes, bytes] = {}
        self._has_waiting = asyncio.Event()
        self._asked_again_at = 0.0

    def register(self, classifiers: Iterable[Classifier]) -> None:
        """Let the scores of checkpoints that were just loaded be stored. It reads their files."""
        for classifier in classifiers:
            if classifier in self._weights or classifier.directory is None:
                continue
            try:
                self._weights[classifier] = weights_key(classifier)
            except (OSError, ModelError) as error:
                logger.warning("no scores of %s are cached: %s", classifier.name, error)

    async def recall(self, rows: Sequence[PairRow]) -> list[bytes]:
        """Give the rows whose scores are stored their results; return the key of each row.

        The key is empty where the row's checkpoint is not registered.
        """
        keys = [b""] * len(rows)
        for classifier in dict.fromkeys(row.lane.classifier for row in rows):
            weights = self._weights.get(classifier)
            if weights is None:
                continue
            indices = [index for index, row in enumerate(rows) if row.lane.classifier is classifier]
            found = row_keys([(rows[index].pair, rows[index].mask) for index in indices], weights)
            for index, key in zip(indices, found, strict=True):
                keys[index] = key
        asked = [index for index, key in enumerate(keys) if key]
        values = await self._read([keys[index] for index in asked])
        known: dict[Classifier, list[tuple[PairRow, bytes]]] = {}
        for index, value in zip(asked, values, strict=False):
            classifier = rows[index].lane.classifier
            logits = unsealed(keys[index], value, len(classifier.config.labels))
            if logits is not None:
                known.setdefault(classifier, []).append((rows[index], logits))
        set_results(known)
        return keys

    def keep(self, rows: Sequence[PairRow], keys: Sequence[bytes]) -> None:
        """Store the scores of rows that were computed, soon. keys: of the rows; empty: not to be stored."""
        for key, row in zip(keys, rows, strict=True):
            if not key or not isinstance(row.result, RowScore):
                continue
            if len(self._waiting) >= WAITING_ROWS:
                self._metrics.count("shared_cache_lost_total")
                continue
            self._waiting[key] = sealed(key, row.result.logits.tobytes())
        if self._waiting:
            self._has_waiting.set()

    async def run(self) -> None:
        """Write what waits to be stored, again and again."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            waiting = self._waiting
            self._waiting = {}
            if await self._write(waiting):
                continue
            self._metrics.count("shared_cache_lost_total", by=len(waiting))
            await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """Write what waits, and end the connections."""
        if self._waiting:
            await self._write(self._waiting)
        await self._client.aclose()

    async def _read(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the values of keys; nothing if the server does not answer in time."""
        import redis

        if not keys or time.monotonic() < self._asked_again_at:
            return ()
        try:
            async with asyncio.timeout(READ_S):
                values: Sequence[bytes | None] = await self._client.mget(keys)
                return values
        except TimeoutError:
            self._metrics.count("shared_cache_failures_total", "timeout")
        except (redis.RedisError, OSError) as error:
            self._failed(error)
        return ()

    async def _write(self, values: Mapping[bytes, bytes]) -> bool:
        """Store values; return whether the server took them."""
        import redis

        try:
            async with asyncio.timeout(WRITE_S):
                await self._client.mset(dict(values))
        except TimeoutError:
            self._metrics.count("shared_cache_failures_total", "timeout")
            return False
        except (redis.RedisError, OSError) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """Count an error, say the first of many, and leave the server alone for PAUSE_S."""
        if time.monotonic() >= self._asked_again_at + PAUSE_S:
            logger.warning("score_cache: %s; scores are computed meanwhile", error)
        self._asked_again_at = time.monotonic() + PAUSE_S
        self._metrics.count("shared_cache_failures_total", "error")


def check_url(url: str, option: str) -> None:
    """Raise ModelError, which names the option, if a server's URL is wrong or there is no package `redis`."""
    try:
        from redis.connection import parse_url
    except ModuleNotFoundError:
        raise ModelError(f"{option}: it needs the package redis: {how_to_install('redis')}") from None
    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ModelError(f"{option}: {error}") from None


def _client(url: str) -> redis.asyncio.Redis:
    """Return a client of the server at a URL, which connects when it is used."""
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return redis.asyncio.Redis.from_url(
        url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=WRITE_S, max_connections=64
    )
