"""API keys: parsing, authentication, and the limits of each key.

`HEADROOM_API_KEYS` holds comma-separated entries `KEY[;role=admin][;rate=50]`; `rate` is in pairs per second,
and each replica counts by itself. A request costs what it makes the network compute, and at least one.
Instead of a key, an entry may hold `sha256:` and the key's SHA-256 digest in hex. Keys are kept as digests
only, so no repr, log, pickle or error message can show one.
"""

import base64
import contextlib
import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, cast

from headroom.service.errors import RateLimited, Unauthorized

Role = Literal["user", "admin"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # the syntax of a bearer token in RFC 6750
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FORM = "KEY[;role=admin][;rate=50]"
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key: its digest, its role, and its rate in pairs per second; None: unlimited."""

    digest: bytes
    role: Role = "user"
    rate: float | None = None

    @property
    def name(self) -> str:
        """Name of the key for logs: the start of its digest, as in `printf %s KEY | sha256sum`."""
        return self.digest.hex()[:8]

    @property
    def entry(self) -> str:
        """The entry with this key's digest, from which `parse_api_keys` makes the same key."""
        rate = "" if self.rate is None else f";rate={self.rate!r}"
        return f"sha256:{self.digest.hex()};role={self.role}{rate}"

    def __repr__(self) -> str:
        return f"ApiKey(role={self.role!r}, rate={self.rate})"


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
    keys: dict[bytes, ApiKey] = {}  # by digest
    for number, entry in enumerate(entries, 1):
        try:
            key = entry if isinstance(entry, ApiKey) else _parse_entry(entry)
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
        if key.digest in keys:
            raise ValueError(f"entry {number}: the same key is listed twice")
        keys[key.digest] = key
    return tuple(keys.values())


def _parse_entry(entry: object) -> ApiKey:
    if not isinstance(entry, str):
        raise ValueError("a key is text; put it in quotes")
    token, *options = (part.strip() for part in entry.split(";"))
    digest = _DIGEST.fullmatch(token)
    if token.startswith("sha256:") and digest is None:
        raise ValueError("sha256: must be followed by the 64 lower-case hex digits of the key's SHA-256")
    if digest is None and not _TOKEN.fullmatch(token):
        raise ValueError("a key is one or more of A-Z a-z 0-9 . _ ~ + / - and may end in =")
    value_of = dict(option.partition("=")[::2] for option in options)
    role = value_of.get("role", "user")
    has_known_options = len(value_of) == len(options) and value_of.keys() <= {"role", "rate"}
    rate: float | None = None
    if "rate" in value_of:
        rate = math.nan
        with contextlib.suppress(ValueError):
            rate = float(value_of["rate"])
    is_rate_possible = rate is None or 0 < rate < math.inf
    if not (has_known_options and is_rate_possible and role in ("user", "admin")):
        raise ValueError(
            "write each option once: role=user or role=admin, and rate=PAIRS_PER_SECOND, above 0"
        )
    digest_bytes = bytes.fromhex(digest[1]) if digest else _digest(token.encode())
    return ApiKey(digest_bytes, cast(Role, role), rate)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _password(credentials: bytes) -> bytes:
    """Return the password in the credentials of Basic authentication (RFC 7617). Raises Unauthorized."""
    try:
        _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
    except ValueError:
        raise Unauthorized from None
    return password


class KeyRing:
    """The keys that a replica accepts, and what is left of their rates.

    A key may spend the rate of one second at once, but at least one. What a request costs is known only after
    it was let in, so a key can owe something; it sends nothing more until that is paid.

    Args:
        keys: the keys.
        clock: returns monotonic seconds.
    """

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = tuple(keys)
        self._clock = clock
        # By the key's digest: how much was left, and when.
        self._balances: dict[bytes, tuple[float, float]] = {}

    def authenticate(self, authorization: bytes | None) -> ApiKey:
        """Return the key in an `Authorization` header, compared in constant time.

        It is a bearer token, or the password of `http://NAME:KEY@host`, which HTTP libraries send as Basic.

        Raises:
            Unauthorized: no header, another scheme, or a key that is not on the ring.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        token = token.strip()
        if scheme.lower() == b"basic":
            token = _password(token)
        elif scheme.lower() != b"bearer":
            raise Unauthorized
        presented = _digest(token)
        matches = [key for key in self._keys if hmac.compare_digest(key.digest, presented)]
        if not matches:
            raise Unauthorized
        return matches[0]

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """Accept these keys from now on. Those that stay keep what is left of their rates."""
        self._keys = tuple(keys)
        digests = {key.digest for key in keys}
        self._balances = {key: balance for key, balance in self._balances.items() if key in digests}

    def spend(self, key: ApiKey) -> None:
        """Charge one request to the key's rate. Raises RateLimited if nothing of it is left."""
        self.check(key, 1.0)
        self.charge(key, 1.0)

    def check(self, key: ApiKey, needed: float) -> None:
        """Raise RateLimited, with the seconds until then, if less than `needed` is left."""
        if key.rate is None:
            return
        missing = needed - self._refilled(key, key.rate)
        if missing > ROUNDING:
            raise RateLimited(missing / key.rate)

    def charge(self, key: ApiKey, cost: float) -> None:
        """Charge a cost to the key's rate, also more than is left."""
        if key.rate is not None:
            self._balances[key.digest] = (self._refilled(key, key.rate) - cost, self._clock())

    def _refilled(self, key: ApiKey, rate: float) -> float:
        """Return what is left now."""
        limit = max(1.0, rate)
        balance, then = self._balances.get(key.digest, (limit, 0.0))
        return min(limit, balance + (self._clock() - then) * rate)


@dataclass
class Allowance:
    """One request's account with its key. paid: what its key has been charged so far; 1 on arrival."""

    ring: KeyRing
    key: ApiKey
    paid: float = 1.0
    cost: float = 0.0

    def check(self) -> None:
        """Raise RateLimited if the key owes for other requests, before this one has cost anything."""
        if not self.cost:
            self.ring.check(self.key, 0.0)

    def add(self, cost: float) -> None:
        """Charge what the network computes for the request, beyond what is paid."""
        self.cost += cost
        if self.cost > self.paid:
            self.ring.charge(self.key, self.cost - self.paid)
            self.paid = self.cost


allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)
"""The allowance of the request that this task answers; None if the service has no keys."""
