"""Notes of what becomes of one request, for its line of the access log and for its trace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.observe.tracing import RequestTrace

MAX_QUERY_CHARS = 200
"""How many characters of a query are written."""

current: ContextVar[Followed | None] = ContextVar("followed", default=None)
"""The request that this task answers, if it is followed."""


class Followed:
    """A request that is followed. `RequestMiddleware` makes one, and those who learn something add it.

    time: when it came, in seconds since 1970. path: as the client sent it, in percent encoding, without its
    query string. key: the name of its API key, or None. trace_id: 32 hex digits, or None. trace: None if the
    request's trace is not recorded. pairs: 0 if it was refused before they were counted. variant, mask: a
    name and an id, or up to four of each, joined by commas. query: None unless the operator wants queries
    written.
    queue_ms, inference_ms: as in the answer; None without one. responding: when its answer was begun, on the
    monotonic clock. shed: why it got no result, in the words of the metric.
    """

    __slots__ = (
        *("time", "request_id", "method", "path", "keeps_query", "key", "trace_id", "trace", "pairs"),
        *("variant", "mask", "query", "queue_ms", "inference_ms", "responding", "shed"),
        *("route", "status", "seconds"),
    )

    def __init__(self, request_id: str, method: str, path: bytes, *, keeps_query: bool) -> None:
        self.time = time.time()
        self.request_id = request_id
        self.method = method
        self.path = path
        self.keeps_query = keeps_query
        self.key: str | None = None
        self.trace_id: str | None = None
        self.trace: RequestTrace | None = None
        self.pairs = 0
        self.variant: str | None = None
        self.mask: str | None = None
        self.query: str | None = None
        self.queue_ms: float | None = None
        self.inference_ms: float | None = None
        self.responding: float | None = None
        self.shed: str | None = None
        self.route = ""
        self.status = 0
        self.seconds = 0.0

    def asks_for(self, columns: Sequence[tuple[str, str]], pairs: int, query: str) -> None:
        """Note what is to be scored: the variant's name and the mask's id of each column."""
        self.variant, self.mask = (_joined(names) for names in zip(*columns, strict=True))
        self.pairs = pairs
        if self.keeps_query:
            self.query = query[:MAX_QUERY_CHARS]

    def responds(self, queue_ms: float, inference_ms: float) -> None:
        """Note that the result is there, and is written out from now on."""
        self.queue_ms = round(queue_ms, 3)
        self.inference_ms = round(inference_ms, 3)
        self.responding = time.monotonic()


def note_stage(name: str, began: float, ended: float) -> None:
    """Add a stage that is over to the trace of this task's request, if it has one; monotonic seconds."""
    if (request_trace := trace()) is not None:
        request_trace.stage(name, began, ended)


def trace() -> RequestTrace | None:
    """Return the trace of this task's request; None if it is not traced."""
    followed = current.get()
    return None if followed is None else followed.trace


def _joined(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ",".join(distinct if len(distinct) <= 4 else [*distinct[:4], "..."])
