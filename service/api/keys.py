"""Who may call the service: holders of an API key, or without keys programs on this machine.

Without API keys, a browser on this machine is the only thing between any web page and the service. A page of
another site names itself in `Origin`; one whose domain was rebound to this machine names its domain in
`Host` (https://fetch.spec.whatwg.org, section "Origin header").
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api import pages
from service.config.keys import KeyRing
from service.errors import Forbidden
from service.observe.record import current

OPEN_PATHS = pages.PATHS | {
    "/health",
    "/health/live",
    "/health/ready",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths whose GET needs no API key: the pages with their files, and the answers about health."""

_EXPOSED_HEADERS = ("Retry-After", "Server-Timing", "X-Config-Version", "X-Degraded", "X-Request-ID")


def check_keyless(headers: Headers, allowed: Sequence[str]) -> None:
    """Check where a request to a service without API keys comes from.

    allowed: origins that may call it. Raises Forbidden.
    """
    hosts = headers.getlist("host")
    for host in hosts:
        if not _is_loopback(host):
            raise Forbidden(
                "Without API keys this service answers only at localhost and 127.0.0.1; to use it under "
                "another name or from another machine, set HEADROOM_API_KEYS."
            )
    for origin in headers.getlist("origin"):
        if origin not in allowed and urlsplit(origin).netloc.lower() not in [host.lower() for host in hosts]:
            raise Forbidden(
                "Without API keys this service answers no web page of another site; set HEADROOM_API_KEYS, "
                "or name the site in HEADROOM_CORS_ORIGINS."
            )


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine: an address of its own, localhost or *.localhost.

    No resolver may lead the names elsewhere (RFC 6761).
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = name.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class KeyMiddleware:
    """Admits requests with an API key that has rate left; if no keys are set, those from this machine.

    The answers about health, and the pages `/` and `/docs` with their own files, are open to all.
    origins: those whose pages may call a service without keys, besides its own.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyRing | None, origins: Sequence[str] = ()) -> None:
        self.app = app
        self.keys = keys
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["method"], scope["path"]):
            headers = Headers(scope=scope)
            if self.keys is None:
                check_keyless(headers, self.origins)
            else:
                given = headers.get("authorization")
                key = self.keys.authenticate(None if given is None else given.encode("latin-1"))
                current().key = key.name
                self.keys.spend(key)
                scope["state"]["key"] = key
        await self.app(scope, receive, send)


def is_open(method: str, path: str) -> bool:
    """Return whether a request needs no API key."""
    return method == "GET" and path in OPEN_PATHS


class OriginsMiddleware(CORSMiddleware):
    """Lets the pages of some origins read the answers (CORS); requests of others pass as they are."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is not None and self.is_allowed_origin(origin):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)
