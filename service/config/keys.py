"""API keys: parsing, authentication, and the limits of each key.

`HEADROOM_API_KEYS` holds comma-separated entries `KEY[;role=admin][;rate=50][;pairs=2000][;burst=10000]`.
`rate` is in requests per second, `pairs` in pairs per second, and `burst` is how many pairs may come at once.
Each replica counts by itself. Instead of a key, an entry may hold `sha256:` and the key's SHA-256
digest in hex. Keys are kept as digests only, so no repr, log, pickle or error message can show one.
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
_FORM = "KEY[;role=admin][;rate=50][;pairs=2000][;burst=10000]"
_LIMITS = ("rate", "pairs", "burst")
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key: its digest, its role, and its limits.

    rate: requests per second. pairs: pairs per second. None: unlimited.
    burst: pairs that may come at once; None: those of one second.
    """

    digest: bytes
    role: Role = "user"
    rate: float | None = None
    pairs: float | None = None
    burst: float | None = None

    @property
    def name(self) -> str:
        """Name of the key for logs: the start of its digest, as in `printf %s KEY | sha256sum`."""
        return self.digest.hex()[:8]

    @property
    def entry(self) -> str:
        """The entry with this key's digest, from which `parse_api_keys` makes the same key."""
        given = {name: getattr(self, name) for name in _LIMITS if getattr(self, name) is not None}
        limits = "".join(f";{name}={value!r}" for name, value in given.items())
        return f"sha256:{self.digest.hex()};role={self.role}{limits}"

    def __repr__(self) -> str:
        return f"ApiKey(role={self.role!r}, rate={self.rate}, pairs={self.pairs}, burst={self.burst})"


def parse_api_keys(value: object) -> tuple[ApiKey, ...]:
    """Return the keys of `HEADROOM_API_KEYS`, or of a list of entries; empty if the list is.

    Raises:
        ValueError: the message says which entry is wrong and why, without repeating it. Blank text is
            wrong: a secret that was left empty must not open the service to everybody.
    """
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"write {_FORM}, not an empty text; for a service without keys, leave it out")
        entries: Sequence[object] = value.split(",")
    elif isinstance(value, list | tuple):
        entries = value
    else:
        raise ValueError(f"write {_FORM} in quotes, or a list of such entries; [] for none")
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
    given = dict(option.partition("=")[::2] for option in options)
    is_right = len(given) == len(options)  # no option twice
    role = given.pop("role", "user")
    try:
        limits = {name: float(value) for name, value in given.items()}
    except ValueError:
        is_right, limits = False, {}
    if not (
        is_right
        and role in ("user", "admin")
        and limits.keys() <= set(_LIMITS)
        and all(0 < limit < math.inf for limit in limits.values())
        and ("burst" not in limits or ("pairs" in limits and limits["burst"] >= 1))
    ):
        raise ValueError(
            "write each option once: role=user or role=admin, rate=REQUESTS_PER_SECOND and "
            "pairs=PAIRS_PER_SECOND, both above 0, and beside pairs also burst=PAIRS, from 1"
        )
    digest_bytes = bytes.fromhex(digest[1]) if digest else _digest(token.encode())
    return ApiKey(digest_bytes, cast(Role, role), **limits)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class _Bucket:
    """A rate with bursts: it holds `capacity` and fills by `rate` per second; it begins full.

    Who takes more than it can ever hold gets it from a full bucket, which then owes the rest. So a rate holds
    on average for requests of any size.
    """

    def __init__(self, rate: float, capacity: float, clock: Callable[[], float]) -> None:
        self._rate, self._capacity, self._clock = rate, capacity, clock
        self._missing, self._at = 0.0, clock()  # what was missing until it is full, and when

    def take(self, amount: float) -> float:
        """Take an amount. Returns 0, or the seconds until it may be taken; then nothing was."""
        self.add(0.0)
        excess = self._missing + min(amount, self._capacity) - self._capacity
        if excess > ROUNDING:
            return excess / self._rate
        self._missing += amount
        return 0.0

    def add(self, amount: float) -> None:
        """Put an amount back; a negative one is taken, even if the bucket then owes it."""
        now = self._clock()
        missing = max(0.0, self._missing - (now - self._at) * self._rate)
        self._missing, self._at = max(0.0, missing - amount), now


class KeyRing:
    """The keys that a replica accepts, and what is left of their limits.

    Args:
        keys: the keys.
        clock: returns monotonic seconds.
    """

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = tuple(keys)
        self._requests = {
            key.digest: _Bucket(key.rate, max(1.0, key.rate), clock) for key in keys if key.rate is not None
        }
        self._pairs = {
            key.digest: _Bucket(key.pairs, key.burst or max(1.0, key.pairs), clock)
            for key in keys
            if key.pairs is not None
        }

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
        bucket = self._requests.get(key.digest)
        if bucket is not None and (wait_s := bucket.take(1.0)) > 0:
            raise RateLimited(wait_s)

    def spend_pairs(self, key: ApiKey, pairs: int) -> None:
        """Count the pairs of a request against the key's rate of pairs.

        A request of more pairs than the key may ever have at once is let in when it has all of those, and the
        requests after it wait for the rest.

        Raises:
            RateLimited: the rate is used up; it says in how many seconds such a request is allowed.
        """
        bucket = self._pairs.get(key.digest)
        if bucket is not None and (wait_s := bucket.take(pairs)) > 0:
            raise RateLimited(wait_s, message="This API key's rate of pairs is used up; try again later.")

    def correct_pairs(self, key: ApiKey, pairs: int) -> None:
        """Give pairs back to a key; a negative number takes more, whether they are left or not."""
        bucket = self._pairs.get(key.digest)
        if bucket is not None:
            bucket.add(pairs)
