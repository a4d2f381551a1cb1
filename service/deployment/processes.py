"""Functions for the processes that a run starts, directly or indirectly."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

import psutil

ENDS_LAST = frozenset(("raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"))
"""Names of the processes that `ray.shutdown` needs."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def family() -> list[psutil.Process]:
    """Return all descendants of this process. Call it before ending any, because orphans would be missing."""
    return psutil.Process().children(recursive=True)


def kill(processes: Iterable[psutil.Process], *, grace_s: float = 0.0) -> None:
    """Kill the processes that still run after the grace period; psutil recognises a reused pid."""
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Block STOP_SIGNALS for the processes started in this block, and for all that these start.

    A terminal and systemd send a signal to every process of a run at once, but only this process knows which
    must end last. Child processes inherit the signal mask, even through `exec`. Ray's programs install
    handlers but do not unblock the signals (HAProxy does, see haproxy.py). A signal to this process is
    delivered at the end of the block, to the handler from before it, although Ray installs its own meanwhile.
    """
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
