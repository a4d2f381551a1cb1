"""Begins and ends the following of requests; the only part that the HTTP side calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from service.config.settings import Settings
from service.observe.access_log import AccessLog
from service.observe.followed import Followed, current

if TYPE_CHECKING:
    from service.observe.tracing import Tracing

CLOSE_SECONDS = 2.0
"""How long a replica that stops waits for the reader of its access log, and for the traces' collector."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class Telemetry:
    """The access log and the traces of one process; make one with `of`."""

    def __init__(self, access_log: AccessLog | None, tracing: Tracing | None, *, keeps_query: bool) -> None:
        self._access_log = access_log
        self._tracing = tracing
        self._keeps_query = keeps_query

    @classmethod
    def of(cls, settings: Settings) -> Telemetry | None:
        """Return what the settings ask for; None if that is nothing."""
        tracing: Tracing | None = None
        if settings.tracing:
            from service.observe.tracing import Tracing

            tracing = Tracing()
        access_log = None if settings.access_log == "off" else AccessLog(settings.access_log)
        if access_log is None and tracing is None:
            return None
        return cls(access_log, tracing, keeps_query=settings.log_queries)

    def begin(self, scope: Mapping[str, Any], request_id: str, *, is_traced: bool) -> Followed:
        """Follow a request from now on, in this task. is_traced: whether it may have spans."""
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        followed = Followed(request_id, scope["method"], path, keeps_query=self._keeps_query)
        if self._tracing is not None and is_traced:
            self._tracing.begin(followed, scope["headers"])
        else:
            followed.trace_id = _trace_of_caller(scope)
        current.set(followed)
        return followed

    def end(self, followed: Followed, *, route: str, status: int, seconds: float) -> None:
        """The request is answered, or given up."""
        current.set(None)
        followed.route, followed.status, followed.seconds = route, status, seconds
        if followed.trace is not None:
            followed.trace.end(followed)
        if self._access_log is not None:
            self._access_log.write(followed)

    def close(self) -> None:
        """Write and send what is left; blocks for seconds at most."""
        if self._access_log is not None:
            self._access_log.close(CLOSE_SECONDS)
        if self._tracing is not None:
            self._tracing.close(CLOSE_SECONDS)


def _trace_of_caller(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"traceparent" and (match := _TRACEPARENT.fullmatch(value)):
            return str(match[1], "ascii")
    return None
