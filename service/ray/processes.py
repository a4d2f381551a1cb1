"""Functions for the processes that a run starts, directly or indirectly."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import psutil

VITAL = frozenset(("raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"))
"""Names of the processes without which Ray cannot go on. It starts none of them again."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
END_S = 2.0
"""How long `kill_family` waits for the end of those that it has killed."""


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that `family` has them too."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def family() -> list[psutil.Process]:
    """Return all descendants of this process."""
    return psutil.Process().children(recursive=True)


def named(names: Iterable[str]) -> dict[psutil.Process, str]:
    """Return the descendants of this process that have one of these names."""
    wanted, found = set(names), {}
    for process in family():
        with contextlib.suppress(psutil.Error):  # it has ended
            if (name := process.name()) in wanted:
                found[process] = name
    return found


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process runs no more."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def kill_family() -> None:
    """Kill all descendants of this process and wait until they have ended.

    Meanwhile nothing reaches standard error: Ray's library in this process writes there what it has lost.
    """
    err = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        processes = family()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=END_S)
    finally:
        os.dup2(err, 2)
        os.close(nowhere)
        os.close(err)


class StopSignal:
    """Handles SIGINT and SIGTERM: the first asks to stop, the second stops at once.

    before_end: is called before the second one ends all processes.
    """

    def __init__(self) -> None:
        self.before_end: Callable[[], None] = lambda: None
        self._event = threading.Event()
        self.is_set = self._event.is_set
        self.wait = self._event.wait

    def install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            self.before_end()
            kill_family()
            os._exit(130)
        self._event.set()


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
