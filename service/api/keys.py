"""Checks who calls the service, and how often it may.

Holders of an API key are let in; if no keys are set, programs on this machine.

Without API keys, a browser on this machine is the only thing between any web page and the service. A page of
another site names itself in `Origin`; one whose domain was rebound to this machine names its domain in
`Host` (https://fetch.spec.whatwg.org, section "Origin header").
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from headroom.service.api import pages
from headroom.service.config.keys import Allowance, KeyRing, allowance
from headroom.service.errors import Forbidden
from headroom.service.observe.access_log import PROBES, current

OPEN_PATHS = pages.PATHS | PROBES
"""Paths whose GET needs no API key: the pages with their files, and the answers about health."""


def check_caller(scope: Scope, keys: KeyRing | None, origins: Sequence[str]) -> None:
    """Admit a request with an API key that has rate left; without keys, one from this machine.

    What is open to everybody passes. keys: None if the service has none. origins: those whose pages may call
    a service without keys, besides its own. Raises Unauthorized, RateLimited or Forbidden.
    """
    allowance.set(None)
    if scope["method"] == "GET" and scope["path"] in OPEN_PATHS:
        return
    headers = Headers(scope=scope)
    if keys is not None:
        given = headers.get("authorization")
        key = keys.authenticate(None if given is None else given.encode("latin-1"))
        current().key = key.name
        scope["state"]["key"] = key
        keys.spend(key)
        allowance.set(Allowance(keys, key))
        return
    hosts = headers.getlist("host")
    if not all(map(_names_this_machine, hosts)):
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


def _names_this_machine(host: str) -> bool:
    """Return whether a Host header names this machine: an address of its own, localhost or *.localhost.

    No resolver may lead the names elsewhere (RFC 6761).
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        return f".{name}".endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
