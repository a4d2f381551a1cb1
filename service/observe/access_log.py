"""The access log: a record of each request, and its line, which is written at once.

`AccessLog` starts and finishes the records of a process; code that learns something about a request
adds it to `current`.

A line goes into the pipe to `headroom serve` whole, as it has no more than PIPE_BUF bytes, or not at all: if
nobody takes it, it is counted and dropped. So the log holds up no request and fills no memory.

Health checks have no line: there would be one every few seconds from each prober.

Every line is printable ASCII, whatever the request holds, so no request can forge a line or move a cursor.
"""

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

logger = logging.getLogger("headroom.access_log")

PIPE = "HEADROOM_ACCESS_LOG_PIPE"
"""Variable that names the pipe to `headroom serve`. Without it, lines go to the replica's standard output."""

PROBES = frozenset(
    {
        "/.well-known/live",
        "/.well-known/ready",
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
    }
)
"""Paths that answer health checks."""

MAX_PATH_BYTES = 256
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "")

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


@dataclass(slots=True)
class Record:
    """Facts of one request, as far as they are known.

    path: as the client sent it, in percent encoding, without its query string. arrived_at: when it arrived,
    in seconds since 1970. key: the name of its API key. trace_id: 32 hex digits, of the caller's
    `traceparent` header.
    pairs: 0 if it was refused before they were counted.
    variant, mask, model: a name, an id and a name, or up to four of each, joined by commas. experiment, arm:
    of its unit. config_version: of the live config that it is answered under. queue_ms, inference_ms: the
    answer's timings. shed: why it got no result, in the words of the metric.
    top_n, error (its type): these and the model are in the trace alone.
    cache: what the answer's header says about the score cache.
    """

    request_id: str
    method: str
    path: bytes
    arrived_at: float = field(default_factory=time.time)
    key: str | None = None
    trace_id: str | None = None
    pairs: int = 0
    variant: str | None = None
    mask: str | None = None
    model: str | None = None
    experiment: str | None = None
    arm: str | None = None
    config_version: str | None = None
    top_n: int | None = None
    queue_ms: float | None = None
    inference_ms: float | None = None
    shed: str | None = None
    error: str | None = None
    cache: str | None = None
    status: int = 0
    seconds: float = 0.0

    def set_columns(self, columns: Sequence[tuple[str, str, str]], pairs: int) -> None:
        """Note what is to be scored: the names of each column's variant and model, and its mask's id."""
        self.variant, self.mask, self.model = (_joined(names) for names in zip(*columns, strict=True))
        self.pairs = pairs

    def set_arm(self, experiment: str, arm: str) -> None:
        """Note which arm of which experiment the request's unit is in."""
        self.experiment = experiment
        self.arm = arm

    def set_latencies(self, queue_ms: float, inference_ms: float) -> None:
        """Note that the result is there."""
        self.queue_ms = round(queue_ms, 3)
        self.inference_ms = round(inference_ms, 3)


_current: ContextVar[Record] = ContextVar("record")


def current() -> Record:
    """Return the record of the request that this task answers; outside of any, one that nobody reads."""
    return _current.get(None) or Record("", "", b"")


class AccessLog:
    """The records of one process's requests, and their lines, if it is to write any."""

    def __init__(self, form: Literal["off", "json"]) -> None:
        self._is_off = form == "off"
        self._lost = 0
        pipe = None if self._is_off else os.environ.get(PIPE)
        self._out = 1
        if pipe is not None:
            try:
                self._out = open_pipe(pipe)
            except OSError as error:
                logger.warning("the access log is in this process's own output: %s: %s", pipe, error.strerror)

    def start(self, scope: Mapping[str, Any], request_id: str) -> Record:
        """Start the record of the request that this task answers."""
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        record = Record(request_id, scope["method"], path)
        record.trace_id = _trace_of_caller(scope)
        _current.set(record)
        return record

    def finish(self, record: Record, *, status: int, seconds: float) -> None:
        """Write the line of a request that is answered, or given up; count it if nobody takes it."""
        if self._is_off or str(record.path, "latin-1") in PROBES:
            return
        record.status = status
        record.seconds = seconds
        try:
            if self._lost:
                os.write(self._out, b'{"lost_lines": %d}\n' % self._lost)
                self._lost = 0
            os.write(self._out, line(record).encode("ascii"))
        except OSError:  # the pipe is full, or its reader is gone
            self._lost += 1


def line(request: Record) -> str:
    """Return a JSON object. Members that do not apply are null."""
    members = {
        "time": timestamp(request.arrived_at),
        "level": "ERROR" if request.status >= 500 else "INFO",
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
        "experiment": request.experiment,
        "arm": request.arm,
        "config_version": request.config_version,
        "queue_ms": request.queue_ms,
        "inference_ms": request.inference_ms,
        "shed": request.shed,
    }
    return json.dumps(members) + "\n"


def timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as the log writes it: `2026-11-22T03:30:00.123Z`."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def open_pipe(path: str) -> int:
    """Return a descriptor of the pipe at this path, whose writes do not block. Raises OSError.

    `/proc/1/fd/1` is a container's standard output. There, as with a file, each write goes to the end.
    """
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)


def _plain(text: bytes) -> str:
    """Return a word of printable ASCII: other bytes in percent encoding, and cut to a length."""
    return quote(text[:MAX_PATH_BYTES], safe=_PRINTABLE)


def _trace_of_caller(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"traceparent" and (match := _TRACEPARENT.fullmatch(value)):
            return str(match[1], "ascii")
    return None


def _joined(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ",".join(distinct if len(distinct) <= 4 else [*distinct[:4], "..."])
