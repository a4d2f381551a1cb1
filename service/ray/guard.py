"""Ends a process that depends on Ray when Ray has died or a stop takes too long.

A call into a dead Ray may block for ever, and Ray does not start its own programs again. So a thread looks at
them, whatever the other threads wait for.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import psutil

from service.ray.processes import STOP_SIGNALS, VITAL, has_ended, kill_family, named
from service.ray.run_directory import RunDirectory

LOOK_S = 0.5


class Guard:
    """Watches the processes that Ray cannot do without. Make it before Ray starts.

    Args:
        end: called with the reason, in one sentence, when this process must end; it must not return.
        is_stopping: whether the process was asked to stop.
        stop_s: how long a stop may take.
    """

    def __init__(
        self,
        end: Callable[[str], object],
        is_stopping: Callable[[], bool] = lambda: False,
        stop_s: float = math.inf,
    ) -> None:
        self._end = end
        self._is_stopping = is_stopping
        self._stop_s = stop_s
        self._vital: dict[psutil.Process, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, before Ray is ended on purpose. A signal handler may call it; it never waits."""
        self._closed.set()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are for the main thread
        stopping_since = math.inf
        while not self._closed.wait(LOOK_S):
            if self._is_stopping():
                stopping_since = min(stopping_since, time.monotonic())
            if len(self._vital) < len(VITAL):
                self._vital |= named(VITAL)
            ended = sorted(name for process, name in self._vital.items() if has_ended(process))
            if self._closed.is_set():  # what has ended may have been killed after `close`
                return
            if ended:
                self._end(f"{' and '.join(ended)} ended, and Ray cannot go on without it")
            if time.monotonic() - stopping_since > self._stop_s:
                self._end(f"the stop has taken more than {self._stop_s:g} s")


def end_run(directory: RunDirectory, reason: str) -> None:
    """Say why, and end every process of this run at once, this one too. Its directory stays for its logs."""
    with contextlib.suppress(OSError):  # nobody reads it
        print(
            f"headroom: {reason}; ending all processes (Ray's logs are in {directory.logs})",
            file=sys.stderr,
            flush=True,
        )
    kill_family()
    with contextlib.suppress(OSError):  # the disk is full
        directory.keep_logs()
    os._exit(1)
