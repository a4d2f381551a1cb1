"""Brings the replicas' access log to the standard output of `headroom serve`.

The replicas write to a named pipe in the run's directory, so the log takes no disk. If nobody reads standard
output, the pipe fills up, and the replicas count the lines that they drop.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from service.observe.access_log import write_all

STOP_SECONDS = 2.0
_OUT = 1
"""Standard output itself: Python's object for it is redirected while Ray runs."""


def make_pipe(run: Path) -> Path:
    """Make the pipe of a run and return its path."""
    pipe = _pipe(run)
    os.mkfifo(pipe, 0o600)
    return pipe


class Copier:
    """Copies the lines of a run's pipe from `start` to `stop`. Until then, the pipe holds 64 KiB of them."""

    def __init__(self, run: Path) -> None:
        # Opened for reading and writing, the pipe has no end while replicas come and go.
        self._pipe = os.open(_pipe(run), os.O_RDWR)
        self._end = os.open(_pipe(run), os.O_WRONLY | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._copy, name="access-log", daemon=True)

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def stop(self) -> None:
        """Copy what is left when all replicas have ended, for up to STOP_SECONDS."""
        if self._thread.is_alive():
            with contextlib.suppress(BlockingIOError):  # the pipe is full, because nobody reads our output
                os.write(self._end, b"\0")  # no line holds this byte
            self._thread.join(STOP_SECONDS)

    def _copy(self) -> None:
        is_read = True
        while not (data := os.read(self._pipe, 65_536)).endswith(b"\0"):
            is_read = is_read and _write(data)
        if is_read:
            _write(data[:-1])


def _write(data: bytes) -> bool:
    """Write to standard output. Return whether somebody still reads it."""
    try:
        write_all(_OUT, data)
    except OSError:
        return False
    return True


def _pipe(run: Path) -> Path:
    return run / "access-log"
