"""Brings the replicas' access log to the standard output of `headroom serve`.

The replicas write to a named pipe in the run's directory, so the log takes no disk. If nobody reads standard
output, the pipe fills up, and the replicas count the lines that they drop.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from service.observe.access_log import PIPE, write_all

STOP_SECONDS = 2.0
_OUT = 1
"""Standard output itself: Python's object for it is redirected while Ray runs."""


class Copier:
    """Makes the pipe of a run, and names it to the processes that this one starts from now on.

    It copies the lines of the pipe from `start` to `stop`. Until then, the pipe holds 64 KiB of them.
    """

    def __init__(self, run: Path) -> None:
        pipe = run / "access-log"
        os.mkfifo(pipe, 0o600)
        os.environ[PIPE] = str(pipe)
        # Opened for reading and writing, the pipe has no end while replicas come and go.
        self._pipe = os.open(pipe, os.O_RDWR)
        self._end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
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
        data, is_read = b"", True
        while not data.endswith(b"\0"):
            data = os.read(self._pipe, 65_536)
            try:
                if is_read:
                    write_all(_OUT, data.removesuffix(b"\0"))
            except OSError:  # nobody reads standard output any more
                is_read = False
