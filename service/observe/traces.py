"""Traces: one OpenTelemetry span per request, sent by OTLP in a background thread.

Only a replica whose environment names a collector imports this module, and with it the SDK. The SDK reads its
own variables (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/): sampler,
headers, propagators, the size of the queue. A span that finds the queue full is dropped. Nothing here waits
for the collector but `flush`.

Attributes follow the semantic conventions for HTTP servers and feature flags, and `headroom.*` for the rest.
A span holds no text, header, API key or query string.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_REQUEST_METHOD_ORIGINAL,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.semconv.attributes.network_attributes import NETWORK_PROTOCOL_VERSION
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS, SERVER_PORT
from opentelemetry.semconv.attributes.service_attributes import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
)
from opentelemetry.semconv.attributes.url_attributes import URL_PATH, URL_SCHEME
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id

from headroom.service.observe.access_log import MAX_PATH_BYTES, Record
from headroom.version import version

PROTOCOL = "http/protobuf"
UNSENT = "traces: spans cannot be sent to the collector; the replicas' logs say why"
MAX_METHOD_CHARS = 32

_METHODS = frozenset("CONNECT DELETE GET HEAD OPTIONS PATCH POST PUT TRACE".split())


class Traces:
    """The spans of one process's requests.

    instance: what tells this replica from others (`service.instance.id`).
    notify_operator: shows a line to the operator.
    Raises ValueError, with a sentence, if a variable of the environment has a wrong value.
    """

    def __init__(self, instance: str, notify_operator: Callable[[str], None]) -> None:
        _check_environment()
        self._propagator = _propagator()
        self._propagated = frozenset(self._propagator.fields)
        named = Resource({SERVICE_NAME: "headroom", SERVICE_VERSION: version()})
        named = named.merge(OTELResourceDetector().detect())  # the operator's names win
        resource = Resource.create({**named.attributes, SERVICE_INSTANCE_ID: instance})
        # Ours alone, not the process's global one: Ray has spans and metrics of its own.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(notify_operator)))
        self._tracer = self._provider.get_tracer("headroom", version())
        self._open = 0
        self._is_idle = threading.Event()
        self._is_idle.set()

    def start(self, scope: Mapping[str, Any], record: Record) -> Callable[[str | None, int], None]:
        """Start a request's span, as a child of the caller's if its headers name one (`traceparent`, or as
        OTEL_PROPAGATORS says).

        Return the function that ends it. It takes the route's template, None if no route matches, and the
        status. The record gets the trace's id.
        """
        parents: dict[str, list[str]] = {}
        host = ""
        for name, value in scope["headers"]:
            key = str(name, "latin-1")
            if key in self._propagated:
                parents.setdefault(key, []).append(str(value, "latin-1"))
            elif key == "host":
                host = str(value, "latin-1")
        span = self._tracer.start_span(
            record.method,
            context=self._propagator.extract(parents),
            kind=SpanKind.SERVER,
            attributes=_known_at_start(scope, record, host),
        )
        if (context := span.get_span_context()).is_valid:
            record.trace_id = format_trace_id(context.trace_id)
        self._open += 1
        self._is_idle.clear()
        return partial(self._end, span, record)

    def _end(self, span: Span, record: Record, route: str | None, status: int) -> None:
        self._open -= 1
        if not self._open:
            self._is_idle.set()
        if span.is_recording():
            method = record.method if record.method in _METHODS else "HTTP"
            span.update_name(method if route is None else f"{method} {route}")
            attributes = _known_at_end(record, route, status)
            span.set_attributes({key: value for key, value in attributes.items() if value is not None})
            if status >= 500:  # of a server's span, 4xx is no error
                span.set_status(StatusCode.ERROR)
        span.end()

    def flush(self, limit_s: float) -> None:
        """Wait up to `limit_s` for the requests under way, and send the spans that have ended.

        It blocks as long as the collector does, up to `OTEL_EXPORTER_OTLP_TIMEOUT` per batch.
        """
        self._is_idle.wait(limit_s)
        self._provider.force_flush()


class _Exporter(OTLPSpanExporter):
    """Tells the operator that the collector takes no spans; the SDK logs why, and drops them."""

    def __init__(self, notify_operator: Callable[[str], None]) -> None:
        super().__init__()
        self._notify_operator = notify_operator

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._notify_operator(UNSENT)
        return result


def _known_at_start(scope: Mapping[str, Any], record: Record, host: str) -> dict[str, Any]:
    """Return the attributes that a sampler may want to see."""
    attributes: dict[str, Any] = {
        HTTP_REQUEST_METHOD: record.method,
        URL_PATH: str(record.path[:MAX_PATH_BYTES], "ascii", "replace"),
        URL_SCHEME: scope.get("scheme", "http"),
        NETWORK_PROTOCOL_VERSION: scope.get("http_version", "1.1"),
        "headroom.request_id": record.request_id,
    }
    if record.method not in _METHODS:
        attributes[HTTP_REQUEST_METHOD] = "_OTHER"
        attributes[HTTP_REQUEST_METHOD_ORIGINAL] = record.method[:MAX_METHOD_CHARS]
    try:
        server = urlsplit(f"//{host}")
        if server.hostname is not None:
            attributes[SERVER_ADDRESS] = server.hostname
            if server.port is not None:
                attributes[SERVER_PORT] = server.port
    except ValueError:  # no address; the request may be refused for it
        pass
    return attributes


def _known_at_end(record: Record, route: str | None, status: int) -> dict[str, Any]:
    """Return the attributes of an answered request; None: it does not apply."""
    return {
        HTTP_ROUTE: route,
        HTTP_RESPONSE_STATUS_CODE: status,
        ERROR_TYPE: record.error or (str(status) if status >= 500 else None),
        "feature_flag.key": record.experiment,
        "feature_flag.result.variant": record.arm,
        "feature_flag.provider.name": None if record.experiment is None else "headroom",
        "headroom.key": record.key,
        "headroom.model": record.model,
        "headroom.variant": record.variant,
        "headroom.mask": record.mask,
        "headroom.candidates": record.pairs or None,
        "headroom.top_n": record.top_n,
        "headroom.queue_seconds": _seconds(record.queue_ms),
        "headroom.inference_seconds": _seconds(record.inference_ms),
        "headroom.shed": record.shed,
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _propagator() -> TextMapPropagator:
    """Return what reads the caller's span from headers. Raises ValueError for wrong OTEL_PROPAGATORS."""
    try:
        from opentelemetry.propagate import get_global_textmap  # which reads the variable when it is imported
    except ValueError:
        raise ValueError(
            "OTEL_PROPAGATORS: should be tracecontext, baggage or none, or be installed with its package"
        ) from None
    return get_global_textmap()


def _check_environment() -> None:
    """Raise ValueError, with a sentence, if spans could not be sent where the environment says."""
    for setting, is_right, form in (
        (
            "PROTOCOL",
            lambda value: value == PROTOCOL,
            f"should be {PROTOCOL}, the only protocol of this service",
        ),
        ("ENDPOINT", _is_url, "should be an http:// or https:// address"),
    ):
        names = (f"OTEL_EXPORTER_OTLP_TRACES_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
        name = next((name for name in names if os.environ.get(name)), None)
        if name is not None and not is_right(os.environ[name].strip()):
            raise ValueError(f"{name}: {form}")


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)
