"""Checks who calls the service, and how much it may score.

Holders of an API key are let in; if no keys are set, programs on this machine.

Without API keys, a browser on this machine is the only thing between any web page and the service. A page of
another site names itself in `Origin`; one whose domain was rebound to this machine names its domain in
`Host` (https://fetch.spec.whatwg.org, section "Origin header").
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from models.errors import InvalidMask
from service.api import pages
from service.config.keys import KeyRing
from service.errors import Forbidden, InvalidRequest, QueueFull, Unavailable
from service.observe.record import current

if TYPE_CHECKING:
    from service.api.post import Post

OPEN_PATHS = pages.PATHS | {
    "/health",
    "/health/live",
    "/health/ready",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths whose GET needs no API key: the pages with their files, and the answers about health."""

BYTES_PER_PAIR = 4_096
"""Bytes of a body that count as one pair at least: long texts cost more to read."""


def check_caller(scope: Scope, keys: KeyRing | None, origins: Sequence[str]) -> None:
    """Admit a request with an API key that has rate left; without keys, one from this machine.

    What is open to everybody passes. keys: None if the service has none. origins: those whose pages may call
    a service without keys, besides its own. Raises Unauthorized, RateLimited or Forbidden.
    """
    if scope["method"] == "GET" and scope["path"] in OPEN_PATHS:
        return
    headers = Headers(scope=scope)
    if keys is not None:
        given = headers.get("authorization")
        key = keys.authenticate(None if given is None else given.encode("latin-1"))
        current().key = key.name
        keys.spend(key)
        scope["state"]["key"] = key
        return
    hosts = headers.getlist("host")
    if not all(map(_is_loopback, hosts)):
        raise Forbidden(
            "Without API keys this service answers only at localhost and 127.0.0.1; to use it under "
            "another name or from another machine, set HEADROOM_API_KEYS."
        )
    for origin in headers.getlist("origin"):
        if origin not in origins and urlsplit(origin).netloc.lower() not in [host.lower() for host in hosts]:
            raise Forbidden(
                "Without API keys this service answers no web page of another site; set HEADROOM_API_KEYS, "
                "or name the site in HEADROOM_CORS_ORIGINS."
            )


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine: an address of its own, localhost or *.localhost.

    No resolver may lead the names elsewhere (RFC 6761).
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        return f".{name}".endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@contextmanager
def charged(request: Post, pairs: int) -> Iterator[Callable[[int], None]]:
    """Count pairs against the rate of a request's key while they are scored. Raises RateLimited.

    A large body counts more pairs: one for every `BYTES_PER_PAIR`.
    They are given back if the replica refuses the request, as wrong or for want of room. An endpoint that
    may score more pairs than announced reports all that it scores to the function that this yields:
    those count however the request ends, and the key may owe them.
    """
    pairs = max(pairs, -(-len(request.content) // BYTES_PER_PAIR))
    pairs_scored = 0

    def count_pairs(more: int) -> None:
        nonlocal pairs_scored
        pairs_scored += more

    if request.key is None:
        yield count_pairs
        return
    keys: KeyRing = request.app.state.keys
    keys.spend_pairs(request.key, pairs)
    least = pairs
    try:
        yield count_pairs
    except (InvalidRequest, InvalidMask, QueueFull, Unavailable):
        least = 0
        raise
    finally:
        if correction := pairs - max(pairs_scored, least):
            keys.correct_pairs(request.key, correction)
