"""Shows the operator what replicas report: notices, warnings and the access log.

Ray keeps a replica's log in a file, which is gone with a container. So that a replica in trouble cannot flood
the operator's log, it shows a limited number of records a minute, and then says how many are missing.

Each notice is a line of JSON. The lines go through named pipes to `headroom serve`, or, on a Ray cluster, to
the standard output of the container (`/proc/1/fd/1`). Neither takes disk, and a full disk does not silence
them. If nobody reads, a notice is dropped, and the lines of the access log are dropped and counted.
"""

import contextlib
import fcntl
import json
import logging
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headroom.service.observe.access_log import PIPE, current, open_pipe, timestamp

NOTICES = "HEADROOM_NOTICES"
"""Variable that names the pipe into which a run's processes write notices for the operator."""

LOGGERS = ("headroom", "ray.serve")

MAX_RECORDS = 20
WINDOW_S = 60.0
"""At most MAX_RECORDS records are shown in each window of WINDOW_S seconds."""

MAX_LINES = 60
"""Limit of a message's lines, and of a traceback's."""

STOP_SECONDS = 2.0
PIPE_BYTES = 1 << 20  # some 3,000 lines
MAX_NOTICE_BYTES = 4_096
"""PIPE_BUF on Linux: the system writes so many bytes in one piece."""

_OUT = 1
"""Standard output itself: Python's object for it is redirected while Ray runs."""


_written_once: set[str] = set()
"""The messages that are to be shown once, and were written. They come from a dozen places."""


def notices_pipe(run: Path) -> Path:
    """Return the pipe of a run that NOTICES names."""
    return run / "notices"


def notify_operator(message: str, *, once: bool = False) -> None:
    """Write a line to the operator, if the environment says where.

    Never blocks or raises: a line that the pipe has no room for is dropped.

    once: the line is shown only the first time that a process of the run writes it with `once`.
    """
    message = " ".join(message.splitlines())
    if once and message in _written_once:
        return
    members = {"time": timestamp(time.time()), "level": "WARNING", "message": message}
    if _write(members | ({"once": True} if once else {})) and once:
        _written_once.add(message)


def _write(notice: dict[str, Any]) -> bool:
    """Write a notice into the pipe; return whether it is there."""
    if NOTICES not in os.environ:
        return False
    with contextlib.suppress(OSError):
        pipe = open_pipe(os.environ[NOTICES])
        try:
            return bool(os.write(pipe, _line(notice)))
        finally:
            os.close(pipe)
    return False


def _line(notice: dict[str, Any]) -> bytes:
    """Return a notice as a line of printable ASCII.

    A notice that is too long loses the beginning of its traceback, then the end of its message.
    """
    line = json.dumps(notice)
    while len(line) >= MAX_NOTICE_BYTES:
        traceback = notice.get("traceback", "")
        message = notice["message"]
        if traceback:
            notice = notice | {"traceback": traceback[(len(traceback) + 1) // 2 :]}
        else:
            notice = notice | {"message": message[: len(message) // 2]}
        line = json.dumps(notice)
    return f"{line}\n".encode("ascii")


def text_of(notice: dict[str, Any]) -> str:
    """Return a notice as the operator of `headroom serve` reads it: the message, then the traceback."""
    text = str(notice["message"])
    if "logger" in notice:
        text = f"replica {notice['process']}: {notice['level']} {notice['logger']}: {text}"
    return f"{text}\n{notice['traceback']}" if notice.get("traceback") else text


class Notices:
    """Makes the pipe of a run's notices, and reads it."""

    def __init__(self, run: Path) -> None:
        pipe = notices_pipe(run)
        os.mkfifo(pipe, 0o600)
        # Opened for writing too, the pipe has no end while processes come and go.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._unfinished = b""
        self._shown_once: set[str] = set()

    def read(self) -> list[dict[str, Any]]:
        """Return the notices that the run's processes wrote since the last call."""
        content = self._unfinished
        with contextlib.suppress(BlockingIOError):  # it is empty
            while True:
                content += os.read(self._pipe, 65_536)
        *lines, self._unfinished = content.split(b"\n")
        notices = []
        for line in lines:
            try:
                notice = json.loads(line)
            except ValueError:  # not ours
                continue
            if notice.pop("once", False):
                if notice["message"] in self._shown_once:
                    continue
                self._shown_once.add(notice["message"])
            notices.append(notice)
        return notices


class OperatorHandler(logging.Handler):
    """Shows log records from WARNING on to the operator, Serve's from ERROR on.

    A record that is logged while a request is answered names the request.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.levelno >= logging.ERROR or not record.name.startswith("ray."))
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
                _write(self._notice(record))
        except Exception:
            self.handleError(record)

    def _notice(self, record: logging.LogRecord) -> dict[str, Any]:
        members = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": "\n".join(record.getMessage().splitlines()[:MAX_LINES]),
        }
        if (request := current()).request_id:
            members |= {
                "request_id": request.request_id,
                "trace_id": request.trace_id,
                "experiment": request.experiment,
                "arm": request.arm,
                "config_version": request.config_version,
            }
        if record.exc_info:
            traceback = logging.Formatter().formatException(record.exc_info)
            members["traceback"] = "\n".join(traceback.splitlines()[-MAX_LINES:])
        return members


class ControllerHandler(logging.Handler):
    """Shows the operator what Serve's controller warns of its replicas: that one was killed, or is silent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.levelno == logging.WARNING)
        self.addFilter(lambda record: record.module == "deployment_state")

    def emit(self, record: logging.LogRecord) -> None:
        """Write the first line of a record. Raises nothing."""
        warning = record.getMessage().partition("\n")[0]
        if " crashed" in warning:
            warning += " Another one is started; the kernel's log says whether this one was out of memory."
        notify_operator(f"Ray Serve: {warning}")


def show_controller_to_operator() -> None:
    """Show the warnings of Serve's controller, whose process this is, from now on. Once per process."""
    logging.getLogger("ray.serve").addHandler(ControllerHandler())


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
