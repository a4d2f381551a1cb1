"""The processes that a run starts, directly or through others."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

import psutil

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def family() -> list[psutil.Process]:
    """All descendants of this process. Take it before ending any: orphans are nobody's descendants."""
    return psutil.Process().children(recursive=True)


def kill(processes: Iterable[psutil.Process], *, grace_s: float = 0.0) -> None:
    """Ends those still there after the grace; psutil knows a process from a later one with its pid."""
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Start processes that STOP_SIGNALS never reach, nor any process that they start.

    A terminal and systemd send a signal to every process of a run at once, but only this one knows what must
    end last. The signal mask is inherited, through `exec` too, and Ray's programs install handlers but do not
    unblock. (HAProxy does: see haproxy.py.) A signal to this process is delivered at the end of the block, to
    the handler from before it: Ray puts its own in place.
    """
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
