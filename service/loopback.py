"""Tells addresses of this machine, which no other machine reaches, from others."""

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: localhost, *.localhost, or a loopback address.

    No other name counts, whatever it is resolved to; these may not lead elsewhere (RFC 6761).

    host: a name, or an address without brackets and port.
    """
    name = host.lower().removesuffix(".")
    try:
        return f".{name}".endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)  # the Host of most requests is the same
def leads_to_loopback(url: str) -> bool:
    """Return whether a URL's host is this machine; its scheme may be missing (`//localhost:8000`)."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
