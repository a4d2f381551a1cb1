"""Traces for OpenTelemetry. No other file imports it, and this one does so only if tracing is on.

A request's trace is continued from its W3C `traceparent` header, or begins here. Under the request's span
are `tokenize`, `queue`, `forward` and `respond`.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.observe.record import Record

_HEADERS = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


class Tracing:
    """Begins the traces of this process's requests and sends them, on a thread of OpenTelemetry's.

    A collector that is slow or away costs spans, never a request: at most OTEL_BSP_MAX_QUEUE_SIZE wait.
    """

    def __init__(self) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("headroom", version("headroom"))
        self._parents = TraceContextTextMapPropagator()

    def begin(self, record: Record, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin a request's trace, or continue its caller's: the request gets its `trace_id` and `trace`."""
        given = {_HEADERS[name]: value.decode("latin-1") for name, value in headers if name in _HEADERS}
        now = time.time_ns()
        clock_ns = now - time.monotonic_ns()
        span = self._tracer.start_span(
            record.method,
            context=self._parents.extract(given),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": record.method},
            start_time=now,
        )
        context = span.get_span_context()
        if context.is_valid:
            record.trace_id = f"{context.trace_id:032x}"
        if span.is_recording():
            record.trace = RequestTrace(span, self._tracer, clock_ns)

    def close(self, timeout_s: float) -> None:
        """Send what is left, within the timeout."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)


class RequestTrace:
    """The spans of one recorded request. Its methods never raise.

    clock_ns: what the wall clock is ahead of the monotonic one, so that all its spans are on one clock.
    """

    def __init__(self, span: Span, tracer: Any, clock_ns: int) -> None:
        self._span = span
        self._tracer = tracer
        self._context = set_span_in_context(span)
        self._clock_ns = clock_ns

    def stage(self, name: str, began: float, ended: float) -> None:
        """Add a stage that is over; the times are on the monotonic clock, in seconds."""
        span = self._tracer.start_span(name, context=self._context, start_time=self._ns(began))
        span.end(self._ns(ended))

    def end(self, record: Record) -> None:
        """End the request's span, with all that is known of the request."""
        now = time.monotonic()
        if record.responding is not None:
            self.stage("respond", record.responding, now)
        self._span.update_name(f"{record.method} {record.route}")
        self._span.set_attributes(_attributes(record))
        if record.status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._ns(now))

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._clock_ns


def _attributes(record: Record) -> Mapping[str, str | int]:
    attributes: dict[str, str | int | None] = {
        "http.route": record.route,
        "http.response.status_code": record.status,
        "headroom.request_id": record.request_id,
        "headroom.variant": record.variant,
        "headroom.mask": record.mask,
        "headroom.pairs": record.pairs or None,
        "headroom.shed": record.shed,
        "headroom.query": record.query,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _resource() -> Resource:
    """Return who we are; what the operator says in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES counts."""
    ours: dict[str, str | int] = {
        "service.name": "headroom",
        "service.version": version("headroom"),
        "service.instance.id": str(uuid.uuid4()),
        "process.pid": os.getpid(),
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())
