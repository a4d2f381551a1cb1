"""A collector of OpenTelemetry's traces in the process of the test: OTLP over HTTP, as protobuf."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Spanned:
    """A span as it was sent."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    is_error: bool
    service: str


@dataclass
class Collector:
    """What was received. `hangs`: while it is set, requests are taken and never answered."""

    url: str = ""
    spans: list[Spanned] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    hangs: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, holds: Callable[[list[Spanned]], object]) -> list[Spanned]:
        """Return all spans as soon as this holds for them."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            spans = list(self.spans)
            if holds(spans):
                return spans
            time.sleep(0.05)
        raise AssertionError(f"not after {PATIENCE_S:g} s: {[span.name for span in self.spans]}")

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(span, service) for span in scope.spans]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            while collector.hangs.is_set():
                time.sleep(0.05)
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the sender did not wait for the answer
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        collector.hangs.clear()
        server.shutdown()
        thread.join()
        server.server_close()


def _span(span: Any, service: str) -> Spanned:
    return Spanned(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        is_error=span.status.code == 2,
        service=service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
