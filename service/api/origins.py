"""Which sites may call the service: its own page, those in `cors_origins`, and programs on this machine.

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

from service.errors import Forbidden

_EXPOSED = ("Retry-After", "Server-Timing", "X-Config-Version", "X-Degraded", "X-Request-ID")


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


class OriginsMiddleware(CORSMiddleware):
    """Lets the pages of some origins read the answers (CORS); requests of others pass as they are."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=_EXPOSED
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is not None and self.is_allowed_origin(origin):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)
