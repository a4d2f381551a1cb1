"""The record of a request: what its line of the access log says of it.

`Telemetry` begins and ends the records of a process; who learns something about a request adds it to
`current`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

if TYPE_CHECKING:
    from service.observe.access_log import AccessLog

MAX_QUERY_CHARS = 200
"""How many characters of a query are written."""

CLOSE_SECONDS = 2.0
"""How long a replica that stops waits for the reader of its access log."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


@dataclass(slots=True)
class Record:
    """Facts of one request, as far as they are known.

    path: as the client sent it, in percent encoding, without its query string. keeps_query: whether the
    operator wants queries written. came: seconds since 1970. key: the name of its API key. trace_id: 32 hex
    digits, of the caller's `traceparent` header. pairs: 0 if it was refused before they were counted.
    variant, mask: a name and an id, or up to four of each, joined by commas. queue_ms, inference_ms: as in
    the answer. shed: why it got no result, in the words of the metric.
    """

    request_id: str
    method: str
    path: bytes
    keeps_query: bool = False
    came: float = field(default_factory=time.time)
    key: str | None = None
    trace_id: str | None = None
    pairs: int = 0
    variant: str | None = None
    mask: str | None = None
    query: str | None = None
    queue_ms: float | None = None
    inference_ms: float | None = None
    shed: str | None = None
    status: int = 0
    seconds: float = 0.0

    def asks_for(self, columns: Sequence[tuple[str, str]], pairs: int, query: str) -> None:
        """Note what is to be scored: the variant's name and the mask's id of each column."""
        self.variant, self.mask = (_joined(names) for names in zip(*columns, strict=True))
        self.pairs = pairs
        if self.keeps_query:
            self.query = query[:MAX_QUERY_CHARS]

    def responds(self, queue_ms: float, inference_ms: float) -> None:
        """Note that the result is there."""
        self.queue_ms = round(queue_ms, 3)
        self.inference_ms = round(inference_ms, 3)


_current: ContextVar[Record] = ContextVar("record")


def current() -> Record:
    """Return the record of the request that this task answers; outside of any, one that nobody reads."""
    return _current.get(None) or Record("", "", b"")


class Telemetry:
    """The access log of one process, if it is asked for. access_log, log_queries: the settings."""

    def __init__(self, access_log: Literal["off", "console", "json"], *, log_queries: bool) -> None:
        self._access_log: AccessLog | None = None
        self._keeps_query = log_queries
        if access_log != "off":
            from service.observe.access_log import AccessLog

            self._access_log = AccessLog(access_log)

    def begin(self, scope: Mapping[str, Any], request_id: str) -> Record:
        """Begin the record of the request that this task answers."""
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        record = Record(request_id, scope["method"], path, self._keeps_query)
        if self._access_log is not None:
            record.trace_id = _trace_of_caller(scope)
        _current.set(record)
        return record

    def end(self, record: Record, *, status: int, seconds: float) -> None:
        """Write the line of a request that is answered, or given up."""
        if self._access_log is not None:
            record.status, record.seconds = status, seconds
            self._access_log.write(record)

    def close(self) -> None:
        """Write what is left; blocks for seconds at most."""
        if self._access_log is not None:
            self._access_log.close(CLOSE_SECONDS)


def _trace_of_caller(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"traceparent" and (match := _TRACEPARENT.fullmatch(value)):
            return str(match[1], "ascii")
    return None


def _joined(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ",".join(distinct if len(distinct) <= 4 else [*distinct[:4], "..."])
