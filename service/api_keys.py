"""API keys: parsing, authentication, and the rate of each key.

`HEADROOM_API_KEYS` holds comma-separated entries `KEY[;role=admin][;rate=50]`. `rate` is in requests per
second and counts in each replica separately. Instead of a key, an entry may hold `sha256:` and the key's
SHA-256 digest in hex. Keys are kept as digests only, so no repr, log, pickle or error message can show one.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from service.errors import RateLimited, Unauthorized

Role = Literal["user", "admin"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # the syntax of a bearer token in RFC 6750
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key: its digest, its role, and its rate in requests per second (None: unlimited)."""

    digest: bytes
    role: Role = "user"
    rate: float | None = None

    @property
    def name(self) -> str:
        """Name of the key for logs: the start of its digest, as in `printf %s KEY | sha256sum`."""
        return f"key {self.digest.hex()[:8]}"

    @property
    def entry(self) -> str:
        """The entry with this key's digest, from which `parse_api_keys` makes the same key."""
        rate = "" if self.rate is None else f";rate={self.rate!r}"
        return f"sha256:{self.digest.hex()};role={self.role}{rate}"

    def __repr__(self) -> str:
        return f"ApiKey(role={self.role!r}, rate={self.rate})"


def parse_api_keys(value: object) -> tuple[ApiKey, ...]:
    """Return the keys of `HEADROOM_API_KEYS`, or of a list of entries; empty if there is no entry.

    Raises:
        ValueError: the message says which entry is wrong and why, without repeating it.
    """
    if isinstance(value, str):
        entries: Sequence[object] = value.split(",") if value.strip() else ()
    elif isinstance(value, list | tuple):
        entries = value
    else:
        raise ValueError("write KEY[;role=admin][;rate=50] in quotes, or a list of such entries; '' for none")
    keys: list[ApiKey] = []
    for number, entry in enumerate(entries, 1):
        try:
            key = entry if isinstance(entry, ApiKey) else _parse_entry(entry)
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
        if key.digest in {other.digest for other in keys}:
            raise ValueError(f"entry {number}: the same key is listed twice")
        keys.append(key)
    return tuple(keys)


def _parse_entry(entry: object) -> ApiKey:
    if not isinstance(entry, str):
        raise ValueError("a key is text; put it in quotes")
    token, *options = (part.strip() for part in entry.split(";"))
    digest = _DIGEST.fullmatch(token)
    if token.startswith("sha256:") and digest is None:
        raise ValueError("sha256: must be followed by the 64 lower-case hex digits of the key's SHA-256")
    if digest is None and not _TOKEN.fullmatch(token):
        raise ValueError("a key is one or more of A-Z a-z 0-9 . _ ~ + / - and may end in =")
    role: Role = "user"
    rate: float | None = None
    named = [option.partition("=")[0] for option in options]
    if len(set(named)) < len(named):
        raise ValueError("an option is given twice")
    for option in options:
        name, _, value = option.partition("=")
        if name == "role" and value in ("user", "admin"):
            role = cast(Role, value)
        elif name == "rate":
            rate = _parse_rate(value)
        else:
            raise ValueError("the options are role=user, role=admin and rate=REQUESTS_PER_SECOND")
    return ApiKey(bytes.fromhex(digest[1]) if digest else _digest(token.encode()), role, rate)


def _parse_rate(value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError("rate is a number of requests per second above 0")
    return rate


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class _TokenBucket:
    """A rate limit that allows bursts of one second's requests, and of at least one request."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate)
        self.tokens = self.capacity
        self.filled_at = now

    def take(self, now: float) -> float:
        """Take one request. Returns 0, or the seconds until the next request is allowed."""
        self.tokens = min(self.capacity, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


class KeyRing:
    """The keys that a service accepts, and the state of their rate limits.

    Args:
        keys: the keys; if empty, the service is open to everybody.
        clock: returns monotonic seconds.
    """

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = tuple(keys)
        self._clock = clock
        self._buckets = {key.digest: _TokenBucket(key.rate, clock()) for key in keys if key.rate is not None}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def authenticate(self, authorization: bytes | None) -> ApiKey:
        """Return the key in an `Authorization` header, compared in constant time.

        Raises:
            Unauthorized: no header, another scheme, or a key that is not on the ring.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized
        presented = _digest(token.strip())
        matches = [key for key in self._keys if hmac.compare_digest(key.digest, presented)]
        if not matches:
            raise Unauthorized
        return matches[0]

    def spend(self, key: ApiKey) -> None:
        """Count one request against the key's rate.

        Raises:
            RateLimited: the rate is used up; it says in how many seconds the next request is allowed.
        """
        bucket = self._buckets.get(key.digest)
        if bucket is None:
            return
        wait_s = bucket.take(self._clock())
        if wait_s > 0:
            raise RateLimited(retry_after=wait_s)
