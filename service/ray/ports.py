"""Gives each run ports of its own for its replicas.

By default every Serve hands out the same ports, the lowest first. If a replica of one run died, a replica of
another run on this machine could take its port and get its requests, because HAProxy keeps the old one as a
backup.
"""

from __future__ import annotations

import atexit
import functools
import socket
from typing import NamedTuple

FIRST = 20_000
"""Above the ports of Ray's workers, below Linux's own choice for outgoing connections."""
PORTS = 500
RUNS = 16


class Ports(NamedTuple):
    """A run's TCP ports, from `first` to below `end`. They stay its own until `mark` is closed."""

    first: int
    end: int
    mark: socket.socket


@functools.cache
def of_this_process() -> Ports:
    """Return the ports that this process has for itself while it lives. Raises OSError as `reserve` does."""
    own = reserve()
    atexit.register(own.mark.close)
    return own


def reserve() -> Ports:
    """Reserve ports on the loopback interface.

    The mark is the UDP port of the first number, which a second run cannot bind. It is free again when its
    process ends, and it counts for all users of the machine and for no other container, just as the ports do.

    Raises:
        OSError: RUNS runs have theirs already.
    """
    for first in range(FIRST, FIRST + RUNS * PORTS, PORTS):
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", first))
        except OSError:
            mark.close()
        else:
            return Ports(first, first + PORTS, mark)
    raise OSError(
        f"no ports are left for replicas: each `headroom serve` takes {PORTS} of {FIRST} to "
        f"{FIRST + RUNS * PORTS - 1}, and {RUNS} run on this machine",
    )
