"""Traces of a replica in this process, sent to a collector."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.config.settings import Settings
from tests.service.in_process import QUERY, TITLES, Service, serve
from tests.service.observe.collector import Collector, Spanned, collecting

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STAGES = {"tokenize", "queue", "forward", "respond"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@asynccontextmanager
async def traced(model: Path, **settings: Any) -> AsyncIterator[Service]:
    """A replica whose traces have all been sent when the block has ended."""
    async with serve(model, tracing=True, **settings) as running:
        yield running
    await asyncio.to_thread(running.app.state.telemetry.close)


def of_trace(spans: Sequence[Spanned], trace: str) -> dict[str, Spanned]:
    return {span.name: span for span in spans if span.trace == trace}


async def test_a_request_continues_its_callers_trace_and_each_stage_is_a_span(
    tiny_checkpoint: Path, collector: Collector
) -> None:
    async with traced(tiny_checkpoint) as running:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        body = {"query": QUERY, "titles": TITLES, "head_mask": "2.*"}
        answer = await running.http.post("/v1/score", json=body, headers=headers)
        mask = answer.json()["head_mask"]["id"]
    spans = of_trace(collector.spans, TRACE)
    assert spans.keys() == STAGES | {"POST /v1/score"}
    request = spans["POST /v1/score"]
    assert (request.parent, request.kind, request.service) == (PARENT, 2, "headroom")
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/score",
        "http.response.status_code": 200,
        "headroom.request_id": "mine",
        "headroom.variant": "full",
        "headroom.mask": mask,
        "headroom.pairs": len(TITLES),
    }
    in_order = [spans[name] for name in ("tokenize", "queue", "forward", "respond")]
    assert {span.parent for span in in_order} == {request.id}
    assert request.start <= in_order[0].start
    assert all(one.end <= other.start for one, other in pairwise(in_order))
    assert in_order[-1].end <= request.end
    assert not any(QUERY.encode() in body or TITLES[0].encode() in body for body in collector.bodies)


async def test_callers_and_the_operator_decide_which_requests_are_recorded(
    tiny_checkpoint: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    async with traced(tiny_checkpoint) as running:
        body = {"query": QUERY, "titles": TITLES}
        for flags in ("00", "01", "zz"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
            assert (await running.http.post("/v1/score", json=body, headers=headers)).status_code == 200
    assert {span.trace for span in collector.spans} == {TRACE}
    assert sorted(span.name for span in collector.spans) == sorted(STAGES | {"POST /v1/score"})


async def test_refusals_failures_and_what_is_asked_for_are_told_but_no_text_unasked(
    tiny_checkpoint: Path, collector: Collector
) -> None:
    async with traced(tiny_checkpoint, log_queries=True) as running:
        await running.refused("/v1/score", 422, query="long " * 100, titles=["x"], head_mask="77.0")
        await running.post("/v1/compare", query="long " * 100, titles=["x"], masks=["none", "1.0"])
        await running.post("/v1/condense", query="black steel angle bracket strong tie", titles=TITLES)
        await running.http.get("/v1/models")
        for path in ("/metrics", "/health/ready"):
            await running.http.get(path)
    requests = {span.name: span for span in collector.spans if span.kind == 2}
    assert requests.keys() == {"POST /v1/score", "POST /v1/compare", "POST /v1/condense", "GET /v1/models"}
    assert requests["POST /v1/score"].attributes["http.response.status_code"] == 422
    compare = requests["POST /v1/compare"].attributes
    assert compare["headroom.query"] == ("long " * 100)[:200]
    assert (compare["headroom.variant"], compare["headroom.mask"].count(",")) == ("full", 1)
    condense = [span for span in collector.spans if span.parent == requests["POST /v1/condense"].id]
    assert len([span for span in condense if span.name == "forward"]) > 1


def test_what_is_missing_for_traces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("service.config.settings.version", missing)
    with pytest.raises(ValueError, match=r"tracing[^$]*pip install -c '\S+constraints.txt' -e '\S+\[otel\]'"):
        Settings(tracing=True)


def test_without_tracing_no_exporter_is_imported() -> None:
    code = """
import sys
from service.api import create_app
from service.observe.metrics import Metrics
from service.config.settings import Settings
create_app(Settings(), Metrics())
assert "service.observe.tracing" not in sys.modules
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
