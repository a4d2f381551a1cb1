"""The access log: one line per request, written by a thread.

A request costs its event loop one entry in a queue. The thread wakes up at most ten times a second, so that
it takes the interpreter from the event loop rarely. If nobody takes the lines, they are counted and dropped:
the log holds up no request and fills no memory.

Every line is printable ASCII, whatever the request holds, so no request can forge a line or move a cursor.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from service.observe.record import Record

PIPE = "HEADROOM_ACCESS_LOG_PIPE"
"""Variable that names the pipe to `headroom serve`. Without it, lines go to the replica's standard output."""

GATHER_S = 0.1
MAX_WAITING_LINES = 20_000
CHUNK_BYTES = 4096
"""Bytes that a pipe takes at once; more could be torn apart by another replica's lines."""

MAX_PATH_BYTES = 256
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "")


class AccessLog:
    """Writes lines of one form, from one process."""

    def __init__(self, form: Literal["console", "json"]) -> None:
        self._line: Callable[[Record], str] = json_line if form == "json" else console_line
        self._lost_line = '{{"lost_lines": {}}}\n' if form == "json" else "access log: {} lines were lost\n"
        self._waiting: deque[Record] = deque()
        self._lost = 0
        self._lost_told = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        pipe = os.environ.get(PIPE)
        self._out = 1 if pipe is None else os.open(pipe, os.O_WRONLY)
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, request: Record) -> None:
        """Queue a request's line. Never blocks."""
        if len(self._waiting) >= MAX_WAITING_LINES:
            self._lost += 1
            return
        self._waiting.append(request)
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Write what waits, within the timeout."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait()
                self._closing.wait(GATHER_S)
                self._wake.clear()
                self._write_waiting()
            self._write_waiting()  # what came during the last write, before `close`
        except OSError:  # the reader is gone; from now on the queue fills up once, and lines are dropped
            return

    def _write_waiting(self) -> None:
        chunk = b""
        while self._waiting:
            line = self._line(self._waiting.popleft()).encode("ascii")
            if len(chunk) + len(line) > CHUNK_BYTES:
                write_all(self._out, chunk)
                chunk = b""
            chunk += line
        if (lost := self._lost) > self._lost_told:
            chunk += self._lost_line.format(lost - self._lost_told).encode("ascii")
            self._lost_told = lost
        if chunk:
            write_all(self._out, chunk)


def json_line(request: Record) -> str:
    """Return a JSON object. Members that do not apply are null; `query` is left out unless it is wanted."""
    return json.dumps(_members(request)) + "\n"


def console_line(request: Record) -> str:
    """Return the same for people; what does not apply is left out."""
    members = _members(request)
    words = [str(members.pop(name)) for name in ("time", "status", "method", "path")]
    for name, value in members.items():
        if value is not None:
            words.append(f"{name}={json.dumps(value) if name == 'query' else value}")
    return " ".join(words) + "\n"


def _members(request: Record) -> dict[str, Any]:
    time = datetime.fromtimestamp(request.came, UTC).isoformat(timespec="milliseconds")
    members = {
        "time": time.replace("+00:00", "Z"),
        "request_id": request.request_id,
        "trace_id": request.trace_id,
        "key": request.key,
        "method": _plain(request.method.encode()),
        "path": _plain(request.path),
        "status": request.status,
        "duration_ms": round(request.seconds * 1000, 3),
        "pairs": request.pairs,
        "variant": request.variant,
        "mask": request.mask,
        "queue_ms": request.queue_ms,
        "inference_ms": request.inference_ms,
        "shed": request.shed,
    }
    if request.keeps_query:
        members["query"] = request.query
    return members


def _plain(text: bytes) -> str:
    """Return a word of printable ASCII: other bytes in percent encoding, and cut to a length."""
    return quote(text[:MAX_PATH_BYTES], safe=_PRINTABLE)


def write_all(out: int, data: bytes) -> None:
    """Write all bytes to an open file. Raises OSError if nobody takes them."""
    while data:
        data = data[os.write(out, data) :]
