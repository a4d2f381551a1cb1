"""The spans that an OTLP collector gets: decoded by OpenTelemetry's own protocol files."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from headroom.loadtest.server import free_port
from headroom.service.observe import open_traces
from headroom.service.observe.traces import UNSENT, Traces
from tests.service.experimenting import config, write_broken_checkpoint
from tests.service.in_process import QUERY, TITLES, serve

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as Python values, by their name."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    """An OTLP collector over HTTP that keeps what it gets."""

    def __init__(self) -> None:
        received: list[ExportTraceServiceRequest] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.received = received
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> dict[str, Span]:
        """Return the spans by the id of their request."""
        spans = [
            span
            for request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        by_request = {values(span.attributes)["headroom.request_id"]: span for span in spans}
        assert len(by_request) == len(spans), "a request has two spans"
        return by_request

    def resources(self) -> list[dict[str, Any]]:
        return [
            values(resource.resource.attributes)
            for request in self.received
            for resource in request.resource_spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names."""
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    yield collector
    collector.close()


def no_notice(line: str) -> None:
    raise AssertionError(line)


async def test_a_span_says_what_was_scored_for_whom_and_how_long_it_took(
    tiny_checkpoint: Path, database_url: str, collector: Collector
) -> None:
    traces = Traces("replica-1", no_notice)
    async with serve(tiny_checkpoint, config(), traces=traces, database_url=database_url) as service:

        async def send(name: str, path: str = "/v1/score?key=secret", trace: str = "", **body: Any) -> Any:
            headers = {"x-request-id": name} | ({"traceparent": trace} if trace else {})
            return await service.http.post(path, json={"query": QUERY} | body, headers=headers)

        scored = await send("scored", trace=TRACEPARENT, titles=TITLES, unit="secret-unit")
        await send("reranked", "/v1/rerank", documents=TITLES, top_n=2)
        await send("refused", titles=["secret"], head_mask="secret")
        await send("late", titles=[f"secret {number}" for number in range(1000)], deadline_ms=1)
        await send("nowhere", "/secret-path")
        await send("unsampled", trace=NOT_SAMPLED, titles=TITLES)
        await service.http.head("/v1/models", headers={"x-request-id": "head"})
        await asyncio.to_thread(traces.flush, 10)
    spans = collector.spans()
    attributes = {name: values(span.attributes) for name, span in spans.items()}
    assert spans.keys() == {"scored", "reranked", "refused", "late", "nowhere", "head"}
    assert {span.kind for span in spans.values()} == {Span.SPAN_KIND_SERVER}

    answer = scored.json()
    assert (spans["scored"].trace_id.hex(), spans["scored"].parent_span_id.hex()) == (TRACE, PARENT)
    assert spans["scored"].name == "POST /v1/score"
    assert attributes["scored"] == {
        "http.request.method": "POST",
        "http.route": "/v1/score",
        "http.response.status_code": 200,
        "url.path": "/v1/score",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "localhost",
        "feature_flag.key": "prune20",
        "feature_flag.result.variant": answer["assignment"]["arm"],
        "feature_flag.provider.name": "headroom",
        "headroom.request_id": "scored",
        "headroom.model": answer["model"],
        "headroom.variant": answer["variant"],
        "headroom.mask": answer["head_mask"]["id"],
        "headroom.candidates": len(TITLES),
        "headroom.queue_seconds": pytest.approx(answer["timing_ms"]["queue"] / 1000, abs=1e-6),
        "headroom.inference_seconds": pytest.approx(answer["timing_ms"]["inference"] / 1000, abs=1e-6),
    }
    seconds = (spans["scored"].end_time_unix_nano - spans["scored"].start_time_unix_nano) / 1e9
    assert seconds >= answer["timing_ms"]["total"] / 1000 - 0.001

    assert spans["reranked"].name == "POST /v1/rerank"
    assert not spans["reranked"].parent_span_id
    assert attributes["reranked"]["headroom.top_n"] == 2
    assert "feature_flag.key" not in attributes["reranked"]
    assert attributes["refused"]["http.response.status_code"] == 422
    assert attributes["refused"]["error.type"] == "invalid_request"
    assert (
        spans["refused"].status.code == Status.STATUS_CODE_UNSET
    )  # the caller's fault is none of the server's
    # The queue may know at once that it cannot be done in time.
    assert (attributes["late"]["error.type"], attributes["late"]["headroom.shed"]) in (
        ("deadline_exceeded", "deadline"),
        ("queue_full", "queue_full"),
    )
    assert attributes["late"]["headroom.candidates"] == 1000
    assert spans["nowhere"].name == "POST"
    assert "http.route" not in attributes["nowhere"]
    assert spans["head"].name == "HEAD /v1/models"
    del attributes["nowhere"]["url.path"]
    assert "secret" not in str(attributes)


async def test_a_failure_of_the_server_is_an_error_of_its_span(
    tiny_checkpoint: Path, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    traces = Traces("replica-1", no_notice)
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("HEADROOM_ACCESS_LOG_PIPE", str(log))
    live = {"variants": [{"name": "full"}, broken]}
    async with serve(tiny_checkpoint, live, traces=traces, access_log="json") as service:
        await service.refused("/v1/score", 500, query=QUERY, titles=TITLES, variant="broken")
        await asyncio.to_thread(traces.flush, 10)
    (span,) = collector.spans().values()
    assert f'"trace_id": "{span.trace_id.hex()}"' in log.read_text(), "a trace that begins here"
    assert span.status.code == Status.STATUS_CODE_ERROR
    attributes = values(span.attributes)
    assert attributes["error.type"] == "internal_error"
    assert attributes["headroom.variant"] == "broken"
    assert attributes["http.response.status_code"] == 500


async def test_a_collector_that_is_gone_fails_no_request_and_is_told_to_the_operator(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    notices: list[str] = []
    traces = Traces("replica-1", notices.append)
    async with serve(tiny_checkpoint, traces=traces) as service:
        await service.post("/v1/score", query=QUERY, titles=TITLES)
        await asyncio.to_thread(traces.flush, 10)
        await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert notices == [UNSENT]


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL: should be http/protobuf, the only protocol of this service",
        ),
        (
            "OTEL_PROPAGATORS",
            "jaegr",
            "OTEL_PROPAGATORS: should be tracecontext, baggage or none, or be installed with its package",
        ),
    ],
)
def test_a_wrong_variable_gets_one_sentence_and_the_replica_serves(
    variable: str,
    value: str,
    sentence: str,
    collector: Collector,  # noqa: ARG001 - sets the endpoint
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate", raising=False)
    notices: list[str] = []
    assert open_traces("replica-1", notices.append) is None
    assert notices == [f"there are no traces: {sentence}"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
)
async def test_traces_that_are_switched_off_leave_the_callers_id_in_the_access_log(
    variable: str,
    value: str,
    tiny_checkpoint: Path,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the SDK disabled, each request had a trace of 32 zeros."""
    monkeypatch.setenv(variable, value)
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("HEADROOM_ACCESS_LOG_PIPE", str(log))
    traces = open_traces("replica-1", no_notice)
    async with serve(tiny_checkpoint, traces=traces, access_log="json") as service:
        await service.post("/v1/score", query=QUERY, titles=TITLES)
        service.http.headers["traceparent"] = TRACEPARENT
        await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert [json.loads(line)["trace_id"] for line in log.read_text().splitlines()] == [None, TRACE]
    assert collector.received == []


async def test_the_environment_says_whose_spans_are_parents_and_probes_have_none(
    tiny_checkpoint: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_PROPAGATORS", "none")
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate")
    traces = Traces("replica-1", no_notice)
    async with serve(tiny_checkpoint, traces=traces) as service:
        service.http.headers["traceparent"] = TRACEPARENT
        await service.post("/v1/score", query=QUERY, titles=TITLES)
        for path in ("/health/ready", "//health/live", "/ping"):
            url = str(service.http.base_url).rstrip("/") + path  # `//` alone would begin a host
            assert (await service.http.get(url)).status_code == 200
        await asyncio.to_thread(traces.flush, 10)
    (span,) = collector.spans().values()
    assert span.name == "POST /v1/score"
    assert (span.parent_span_id, span.trace_id.hex() == TRACE) == (b"", False)


def test_without_the_extra_the_replica_serves_and_says_how_to_install_it(
    collector: Collector,  # noqa: ARG001 - sets the endpoint
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "headroom.service.observe.traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    notices: list[str] = []
    assert open_traces("replica-1", notices.append) is None
    (notice,) = notices
    assert notice.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set, but traces need more packages: ")
    assert "[otel]" in notice
