"""When a request came to the proxy in front, so that its deadline counts from there.

HAProxy stamps each request once, also one that it then sends to a second replica because the first one died:
its deadline does not begin anew (service/ray/haproxy.cfg.jinja). The stamp replaces whatever the caller sent
under this name.

It counts only on the machine that made it: another one's clock may be wrong by more than a deadline. A forged
one, from a caller that reaches a replica past HAProxy, could only shorten that caller's own deadline.
"""

import time
from collections.abc import Iterable
from pathlib import Path

STAMP = "x-headroom-received"
"""The header: the machine's id, a semicolon, and microseconds since 1970."""

MAX_STAMP_BYTES = 64

_NAME = STAMP.encode()


def _machine() -> str:
    """Return what all processes of this machine know and no other machine has; empty if nothing is known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


MACHINE = _machine()


def seconds_at_proxy(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Return how long ago this machine's proxy stamped a request; 0 if it did not."""
    for name, value in headers:
        if name == _NAME and len(value) <= MAX_STAMP_BYTES:
            machine, _, microseconds = str(value, "latin-1").partition(";")
            if MACHINE and machine == MACHINE and microseconds.isdecimal():
                return max(0.0, time.time() - int(microseconds) / 1e6)
    return 0.0
