"""Gives each run ports of its own for its replicas.

By default every Serve hands out the same ports, the lowest first. If a replica of one run died, a replica of
another run on this machine could take its port and get its requests, because HAProxy keeps the old one as a
backup.
"""

from __future__ import annotations

import atexit
import functools
import socket

FIRST = 20_000
"""Above the ports of Ray's workers, below Linux's own choice for outgoing connections."""
PORTS = 500
RUNS = 16


@functools.cache
def first_of_this_process() -> int:
    """Return the first of PORTS TCP ports on the loopback interface that this process has for itself.

    The mark of a run is the UDP port of the first number, which a second run cannot bind. It is free again
    when the process ends, and it counts for all users of the machine and for no other container, just as the
    ports do. Raises OSError if RUNS runs have theirs already.
    """
    for first in range(FIRST, FIRST + RUNS * PORTS, PORTS):
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", first))
        except OSError:
            mark.close()
        else:
            atexit.register(mark.close)  # it stays open until then
            return first
    raise OSError(
        f"no ports are left for replicas: each `headroom serve` takes {PORTS} of {FIRST} to "
        f"{FIRST + RUNS * PORTS - 1}, and {RUNS} run on this machine",
    )
