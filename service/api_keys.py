"""API keys: how they are written, how one is recognised, and how often each may call.

`HEADROOM_API_KEYS` holds comma-separated entries `KEY[;role=admin][;rate=50]`; `rate`, requests per second,
counts in each replica on its own. `sha256:` and the SHA-256 digest of a key, in hex, may stand in its place.
Keys are kept as digests only, so no repr, log, pickle or error message can show one.
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

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what RFC 6750 lets a bearer token be
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: the digest it is recognised by, its role, and its rate in requests per second (None: any)."""

    digest: bytes
    role: Role = "user"
    rate: float | None = None

    @property
    def name(self) -> str:
        """What a log may say of it: the start of the digest, as in `printf %s KEY | sha256sum`."""
        return f"key {self.digest.hex()[:8]}"

    @property
    def entry(self) -> str:
        """The entry of this key by its digest, from which `parse_api_keys` makes the same key."""
        rate = "" if self.rate is None else f";rate={self.rate!r}"
        return f"sha256:{self.digest.hex()};role={self.role}{rate}"

    def __repr__(self) -> str:
        return f"ApiKey(role={self.role!r}, rate={self.rate})"


def parse_api_keys(value: object) -> tuple[ApiKey, ...]:
    """The keys of `HEADROOM_API_KEYS`, or of a list with an entry each; none if there is no entry.

    Raises:
        ValueError: says which entry is wrong and how, without repeating it.
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
        raise ValueError("after sha256: come the 64 hex digits of the key's SHA-256, in lower case")
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
    """A rate with a burst of one second's worth, and at least one request."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate)
        self.tokens = self.capacity
        self.filled_at = now

    def take(self, now: float) -> float:
        """Take one request; returns 0, or the seconds until there will be one to take."""
        self.tokens = min(self.capacity, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


class KeyRing:
    """The keys a service accepts, with what is left of each one's rate.

    Args:
        keys: none means that everything is open.
        clock: monotonic seconds.
    """

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = tuple(keys)
        self._clock = clock
        self._buckets = {key.digest: _TokenBucket(key.rate, clock()) for key in keys if key.rate is not None}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def authenticate(self, authorization: bytes | None) -> ApiKey:
        """The key that an `Authorization` header carries, found in constant time.

        Raises:
            Unauthorized: no header, another scheme, or a key that is not on the ring.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized
        presented = _digest(token.strip())
        found = [key for key in self._keys if hmac.compare_digest(key.digest, presented)]
        if not found:
            raise Unauthorized
        return found[0]

    def spend(self, key: ApiKey) -> None:
        """Count one request against the key's rate.

        Raises:
            RateLimited: with the seconds until the next request may come.
        """
        bucket = self._buckets.get(key.digest)
        if bucket is None:
            return
        wait_s = bucket.take(self._clock())
        if wait_s > 0:
            raise RateLimited(retry_after=wait_s)
