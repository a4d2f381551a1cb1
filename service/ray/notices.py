"""Shows the operator of `headroom serve` what its replicas report: notices, warnings and the access log.

Ray keeps a replica's log in a file, which is gone with a container. So that a replica in trouble cannot flood
the operator's log, it shows a limited number of records a minute, and then says how many are missing.

Notices and the access log go through named pipes in the run's directory: they take no disk, and a full disk
does not silence them. If nobody reads standard output, the access log's pipe fills up, and the replicas count
the lines that they drop.
"""

import contextlib
import fcntl
import logging
import math
import os
import sys
import threading
from pathlib import Path

from headroom.service.observe.access_log import PIPE

NOTICES = "HEADROOM_NOTICES"
"""Variable that names the pipe into which a run's processes write lines for the operator."""

LOGGERS = ("headroom", "ray.serve")

MAX_RECORDS = 20
WINDOW_S = 60.0
"""At most MAX_RECORDS records are shown in each window of WINDOW_S seconds."""

MAX_LINES = 60

STOP_SECONDS = 2.0
PIPE_BYTES = 1 << 20  # some 3,000 lines
MAX_NOTICE_BYTES = 4_000
"""The system writes up to PIPE_BUF bytes, 4,096 on Linux, in one piece."""
_ONCE = b"\1"
"""First byte of a notice that is shown once."""

_OUT = 1
"""Standard output itself: Python's object for it is redirected while Ray runs."""


def notices_pipe(run: Path) -> Path:
    """Return the pipe of a run that NOTICES names."""
    return run / "notices"


def notify_operator(line: str, *, once: bool = False) -> None:
    """Write a line to the operator of `headroom serve`, if that started this process.

    Never blocks or raises: a line that the pipe has no room for is dropped.

    once: the line is shown only the first time that a process of the run writes it with `once`.
    """
    if NOTICES not in os.environ:
        return
    marked = (_ONCE if once else b"") + " ".join(line.splitlines()).encode(errors="replace")
    with contextlib.suppress(OSError):
        pipe = os.open(os.environ[NOTICES], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, marked[:MAX_NOTICE_BYTES] + b"\n")
        finally:
            os.close(pipe)


class Notices:
    """Makes the pipe of a run's notices, and reads it."""

    def __init__(self, run: Path) -> None:
        pipe = notices_pipe(run)
        os.mkfifo(pipe, 0o600)
        # Opened for writing too, the pipe has no end while processes come and go.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._unfinished = b""
        self._shown_once: set[bytes] = set()

    def read(self) -> list[str]:
        """Return the lines that the run's processes wrote since the last call."""
        content = self._unfinished
        with contextlib.suppress(BlockingIOError):  # it is empty
            while True:
                content += os.read(self._pipe, 65_536)
        *lines, self._unfinished = content.split(b"\n")
        notices = []
        for line in lines:
            if line.startswith(_ONCE):
                if line in self._shown_once:
                    continue
                self._shown_once.add(line)
            notices.append(line.removeprefix(_ONCE).decode(errors="replace"))
        return notices


class OperatorHandler(logging.Handler):
    """Hands log records from WARNING on to `notify_operator`, Serve's from ERROR on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.levelno >= logging.ERROR or not record.name.startswith("ray."))
        self.setFormatter(logging.Formatter(f"replica {os.getpid()}: %(levelname)s %(name)s: %(message)s"))
        self._window_began = -math.inf
        self._records = 0  # of the window

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record and its traceback, or count it if there were too many. Raises nothing."""
        try:
            if abs(record.created - self._window_began) >= WINDOW_S:  # the system's clock may be set back
                if self._records > MAX_RECORDS:
                    missing = self._records - MAX_RECORDS
                    notify_operator(f"replica {os.getpid()}: {missing} more records are in its log")
                self._window_began = record.created
                self._records = 0
            self._records += 1
            if self._records <= MAX_RECORDS:
                for line in self.format(record).splitlines()[:MAX_LINES]:
                    notify_operator(line)
        except Exception:
            self.handleError(record)


def show_to_operator() -> None:
    """Show this process's log to the operator from now on. Once per process."""
    handler = OperatorHandler()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)


class AccessLogCopier:
    """Makes the pipe of a run, and names it to the processes that this one starts from now on.

    It copies the lines of the pipe from `start` to `stop`. The pipe holds PIPE_BYTES of them.
    """

    def __init__(self, run: Path) -> None:
        pipe = run / "access-log"
        os.mkfifo(pipe, 0o600)
        os.environ[PIPE] = str(pipe)
        # Opened for reading and writing, the pipe has no end while replicas come and go.
        self._pipe = os.open(pipe, os.O_RDWR)
        self._end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        if sys.platform == "linux":
            fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
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
        data = b""
        is_read = True
        while not data.endswith(b"\0"):
            data = os.read(self._pipe, 65_536)
            try:
                rest = data.removesuffix(b"\0") if is_read else b""
                while rest:
                    rest = rest[os.write(_OUT, rest) :]
            except OSError:  # nobody reads standard output any more
                is_read = False
