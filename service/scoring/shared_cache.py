"""The score cache's second level: logits in a Redis or Valkey server that replicas and nodes share.

A value is a row's logits with a checksum; `cache` makes the keys. Eviction and persistence are the server's.
A server that is slow, away or full costs a request at most READ_S: its rows are computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from headroom.models.errors import ModelError, how_to_install
from headroom.service.observe.metrics import Metrics

if TYPE_CHECKING:
    import redis.asyncio

logger = logging.getLogger("headroom.score_cache")

READ_S = 0.005
"""A request waits for the server at most this long."""

ANSWER_S = 1.0
"""Connecting, reading and writing are given up after this time."""

PAUSE_S = 1.0
"""Seconds in which a server that cannot be reached is not asked again."""

WAITING_ROWS = 20_000
"""At most this many scores wait to be written; more are not stored."""

CONNECTIONS = 64

PREFIX = b"headroom:1:"
"""Begins every key. The number changes with the form of keys or values."""

CHECK_BYTES = 8


def sealed(key: bytes, logits: bytes) -> bytes:
    """Return the value of a key: the float32 logits and a checksum of both."""
    return logits + blake2b(key + logits, digest_size=CHECK_BYTES).digest()


def unsealed(key: bytes, value: bytes | None) -> bytes | None:
    """Return the logits of a value; None if there is none, or if it is not what was stored under the key."""
    if value is None:
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
        self._waiting: dict[bytes, bytes] = {}
        self._has_waiting = asyncio.Event()
        self._reading: set[asyncio.Task[list[bytes | None]]] = set()
        self._asked_again_at = 0.0

    async def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the float32 logits under each key; None where there are none, or if they come too late."""
        values: list[bytes | None] = [None] * len(keys)
        if not keys or time.monotonic() < self._asked_again_at:
            return values
        # Not cancelled when it is late: that would close its connection, and a new one takes longer still.
        reading = asyncio.create_task(self._values(keys))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        if (await asyncio.wait({reading}, timeout=READ_S))[0]:
            values = reading.result()
        else:
            self._metrics.count("shared_cache_failures_total", "timeout")
        found = [unsealed(key, value) for key, value in zip(keys, values, strict=True)]
        misses = found.count(None)
        self._metrics.count("shared_cache_total", "hit", by=len(keys) - misses)
        self._metrics.count("shared_cache_total", "miss", by=misses)
        return found

    async def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return what the server has under each key; None for each if it has failed."""
        import redis

        try:
            async with asyncio.timeout(ANSWER_S):
                values: list[bytes | None] = await self._client.mget([PREFIX + key for key in keys])
                return values
        except (TimeoutError, redis.RedisError, OSError) as error:
            self._failed(error)
            return [None] * len(keys)

    def keep(self, scored: Mapping[bytes, bytes]) -> None:
        """Store float32 logits by their keys, soon."""
        for key, logits in scored.items():
            if len(self._waiting) >= WAITING_ROWS:
                self._metrics.count("shared_cache_lost_total")
                continue
            self._waiting[PREFIX + key] = sealed(key, logits)
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
        for reading in self._reading:
            reading.cancel()
        await self._client.aclose()

    async def _write(self, values: Mapping[bytes, bytes]) -> bool:
        """Store values; return whether the server took them."""
        import redis

        try:
            async with asyncio.timeout(ANSWER_S):
                await self._client.mset(dict(values))
        except (TimeoutError, redis.RedisError, OSError) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """Count an error, say the first of many, and leave the server alone for PAUSE_S."""
        if time.monotonic() >= self._asked_again_at + PAUSE_S:
            problem = str(error) or f"no answer within {ANSWER_S:g} s"
            logger.warning("score_cache: %s; scores are computed meanwhile", problem)
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

    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=ANSWER_S,
        max_connections=CONNECTIONS,
        timeout=None,  # a read that waits for a connection is late, and the server has not failed
    )
    return redis.asyncio.Redis.from_pool(pool)
