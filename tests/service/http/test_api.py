"""The HTTP side as a caller meets it: shapes, statuses, headers, and the document that promises them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI

from models.errors import InvalidMask
from service.errors import (
    DeadlineExceeded,
    DeviceFailed,
    Draining,
    OutOfMemory,
    QueueFull,
)
from service.http import create_app
from service.metrics import Metrics
from service.settings import Settings
from tests.service.asgi import DISCONNECT, Exchange, chunk, client
from tests.service.fake_backend import FakeBackend
from tests.service.test_metrics import samples

SCORE = {"query": "angle bracket", "titles": ["Simpson Strong-Tie 12-Gauge Angle", ""]}
OUTCOMES = {
    "outcomes": [
        {"experiment": "e", "unit": "u", "metric": "click", "value": 1, "time": 1_700_000_000, "id": "1"}
    ]
}
POSTS = ("/v1/score", "/v1/compare", "/v1/attention")
GETS = ("/v1/models", "/v1/variants", "/v1/masks")


def app_with(backend: FakeBackend | None = None, **settings: Any) -> FastAPI:
    app = create_app(Settings(**settings), Metrics())
    app.state.backend = backend if backend is not None else FakeBackend()
    return app


SHARED = app_with()
"""For tests that change nothing and count nothing."""


async def post(app: FastAPI, path: str, body: Any, **headers: str) -> httpx.Response:
    async with client(app) as session:
        return await session.post(path, content=orjson.dumps(body), headers=headers)


async def get(app: FastAPI, path: str, **headers: str) -> httpx.Response:
    async with client(app) as session:
        return await session.get(path, headers=headers)


def metrics_of(app: FastAPI) -> dict[str, float]:
    metrics: Metrics = app.state.metrics
    return samples(metrics.render())


def assert_error(response: httpx.Response, status: int, kind: str, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(error) == ["type", "message", "param"]
    assert (error["type"], error["param"]) == (kind, param)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert len(response.content) < 1000
    return str(error["message"])


async def test_a_score_has_the_contracts_fields_in_its_order() -> None:
    response = await post(app_with(), "/v1/score", {**SCORE, "head_mask": " 2.3, 7.* "})
    assert response.status_code == 200
    body = response.json()
    assert list(body) == [
        *("model", "variant", "head_mask", "assignment", "degraded", "results", "usage", "timing_ms"),
    ]
    assert body["head_mask"] == {
        "id": body["head_mask"]["id"],
        "spec": "2.3,7.*",
        "heads_on": 131,
        "heads": 144,
        "units_on": 36_864,
        "units": 36_864,
        "layers_on": 12,
        "layers": 12,
    }
    assert body["assignment"] is None
    assert body["degraded"] is False
    assert body["results"][1] == {
        "index": 1,
        "grade": 3,
        "label": "good",
        "expected_grade": 2.87,
        "score": 0.717,
        "probabilities": [0.01, 0.04, 0.2, 0.61, 0.14],
        "tokens": 17,
        "unknown_tokens": 0,
        "truncated": False,
        "chunk": None,
    }
    assert list(body["results"][0]) == list(body["results"][1])
    assert body["usage"] == {"pairs": 2, "tokens": 34}
    assert list(body["timing_ms"]) == ["tokenize", "queue", "inference", "total"]
    assert response.headers["server-timing"] == (
        "tokenize;dur=0.200, queue;dur=0.400, inference;dur=6.100, total;dur=7.000"
    )
    assert response.headers["x-config-version"] == "0123456789ab"


async def test_pairs_stand_in_for_query_and_titles() -> None:
    backend = FakeBackend()
    response = await post(app_with(backend), "/v1/score", {"pairs": [["a", "x"], ["b", ""]], "query": None})
    assert response.status_code == 200
    assert backend.requests[0].texts() == [("a", "x"), ("b", "")]  # type: ignore[attr-defined]


async def test_compare_answers_masks_first_then_variants() -> None:
    body = {**SCORE, "masks": ["none", "0-5.*", {"off": [[1, 1]]}], "variants": ["full"]}
    response = await post(app_with(), "/v1/compare", body)
    assert response.status_code == 200
    specs = [column["head_mask"]["spec"] for column in response.json()["columns"]]
    assert specs == ["none", "0-5.*", "1.1", "none"]


async def test_attention_gives_a_matrix_per_head() -> None:
    body = {"query": "a", "title": "", "heads": "2.3,4.0-1"}
    response = await post(app_with(), "/v1/attention", body)
    assert response.status_code == 200
    heads = response.json()["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [(2, 3), (4, 0), (4, 1)]
    assert [len(row) for row in heads[0]["probabilities"]] == [3, 3, 3]


@pytest.mark.parametrize("path", GETS)
async def test_what_is_loaded_can_be_listed(path: str) -> None:
    response = await get(app_with(), path)
    assert response.status_code == 200
    assert response.headers["x-config-version"] == "0123456789ab"
    assert len(response.json()[path.rpartition("/")[2]]) == 1


BAD_REQUESTS: list[tuple[str, dict[str, Any] | list[Any] | str | None, str | None, str]] = [
    ("/v1/score", {}, "query", "missing"),
    ("/v1/score", [], None, "object"),
    ("/v1/score", "query", None, "object"),
    ("/v1/score", None, None, "object"),
    ("/v1/score", {"query": "a"}, "titles", "missing"),
    ("/v1/score", {"titles": ["a"]}, "query", "missing"),
    ("/v1/score", {**SCORE, "pairs": [["a", "b"]]}, "pairs", "not both"),
    ("/v1/score", {"query": "a", "pairs": [["a", "b"]]}, "pairs", "not both"),
    ("/v1/score", {**SCORE, "query": ""}, "query", "blank"),
    ("/v1/score", {**SCORE, "query": " \t\u00a0\u2003"}, "query", "blank"),
    ("/v1/score", {**SCORE, "query": "\x00\u200b"}, "query", "blank"),
    ("/v1/score", {"pairs": [["a", "b"], [" ", "b"]]}, "pairs[1][0]", "blank"),
    ("/v1/score", {"query": "a", "titles": []}, "titles", "at least 1"),
    ("/v1/score", {"pairs": []}, "pairs", "at least 1"),
    ("/v1/score", {"query": "a", "titles": ["b"] * 1001}, "titles", "1000"),
    ("/v1/score", {"pairs": [["a", "b"]] * 1001}, "pairs", "1000"),
    ("/v1/score", {"query": "a", "titles": "b"}, "titles", "list"),
    ("/v1/score", {"query": "a", "titles": {"0": "b"}}, "titles", "list"),
    ("/v1/score", {"query": "a", "titles": ["b", 3]}, "titles[1]", "string"),
    ("/v1/score", {"query": "a", "titles": ["b", None]}, "titles[1]", "string"),
    ("/v1/score", {"query": 1, "titles": ["b"]}, "query", "string"),
    ("/v1/score", {"pairs": [["a"]]}, "pairs[0][1]", "missing"),
    ("/v1/score", {"pairs": [["a", "b", "c"]]}, "pairs[0]", "at most 2"),
    ("/v1/score", {"pairs": ["ab"]}, "pairs[0]", "two strings"),
    ("/v1/score", {"pairs": [{"a": "b"}]}, "pairs[0]", "two strings"),
    ("/v1/score", {**SCORE, "title": "x"}, "title", "no such field"),
    ("/v1/score", {f"k{n}" * 50: n for n in range(100)}, f"{'k0' * 32}…", "no such field"),
    ("/v1/score", {**SCORE, "head_mask": 3}, "head_mask", "mask spec"),
    ("/v1/score", {**SCORE, "head_mask": [[1, 1]]}, "head_mask", "mask spec"),
    ("/v1/score", {**SCORE, "head_mask": "12.0"}, "head_mask", "12"),
    ("/v1/score", {**SCORE, "head_mask": "1" * 20_000}, "head_mask", "longer"),
    ("/v1/score", {**SCORE, "head_mask": {"weights": [[2.0]]}}, "head_mask", ""),
    ("/v1/score", {**SCORE, "variant": "nobody"}, "variant", "full"),
    ("/v1/score", {**SCORE, "variant": ""}, "variant", "at least 1"),
    ("/v1/score", {**SCORE, "unit": ""}, "unit", "at least 1"),
    ("/v1/score", {**SCORE, "unit": "u" * 257}, "unit", "256"),
    ("/v1/score", {**SCORE, "unit": 7}, "unit", "string"),
    ("/v1/score", {**SCORE, "deadline_ms": 0}, "deadline_ms", "greater than 0"),
    ("/v1/score", {**SCORE, "deadline_ms": -5}, "deadline_ms", "greater than 0"),
    ("/v1/score", {**SCORE, "deadline_ms": 60_001}, "deadline_ms", "60000"),
    ("/v1/score", {**SCORE, "deadline_ms": True}, "deadline_ms", "number"),
    ("/v1/score", {**SCORE, "deadline_ms": "200"}, "deadline_ms", "number"),
    ("/v1/compare", SCORE, "masks", "at least one"),
    ("/v1/compare", {**SCORE, "masks": [], "variants": []}, "masks", "at least one"),
    ("/v1/compare", {**SCORE, "masks": ["none"] * 65}, "masks", "64"),
    ("/v1/compare", {**SCORE, "masks": ["none"] * 32, "variants": ["full"] * 33}, "masks", "64"),
    ("/v1/compare", {**SCORE, "titles": ["a"] * 100, "masks": ["none"] * 41}, "titles", "4096"),
    ("/v1/compare", {**SCORE, "masks": "none"}, "masks", "list"),
    ("/v1/compare", {**SCORE, "masks": ["none", 3]}, "masks[1]", "mask spec"),
    ("/v1/compare", {**SCORE, "masks": ["none", "x"]}, "masks[1]", ""),
    ("/v1/compare", {**SCORE, "masks": ["none"], "unit": "u"}, "unit", "no such field"),
    ("/v1/attention", {"query": "a", "title": "b"}, "heads", "missing"),
    ("/v1/attention", {"query": " ", "title": "b", "heads": "0.0"}, "query", "blank"),
    ("/v1/attention", {"query": "a", "title": None, "heads": "0.0"}, "title", "string"),
    ("/v1/attention", {"query": "a", "title": "b", "heads": ""}, "heads", "at least 1"),
]


@pytest.mark.parametrize(("path", "body", "param", "says"), BAD_REQUESTS)
async def test_a_wrong_request_is_told_which_field_and_why(
    path: str, body: Any, param: str | None, says: str
) -> None:
    message = assert_error(await post(SHARED, path, body), 422, "invalid_request", param)
    assert says in message
    if param is not None:
        assert message.startswith(f"{param}: ")


BAD_JSON = [
    b"",
    b"{",
    b"nonsense",
    b'{"query": NaN}',
    b'{"query": "a", "query": "b"}',
    rb'{"query": "\ud800"}',
    b"\xff",
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [*BAD_JSON, b"[" * 33 + b"]" * 33])
async def test_what_is_not_strict_json_is_a_400_everywhere(path: str, body: bytes) -> None:
    async with client(SHARED) as session:
        assert_error(await session.post(path, content=body), 400, "invalid_json")


async def test_a_million_wrong_items_are_one_short_error() -> None:
    app = app_with()
    for body in (
        b'{"query": "a", "titles": [' + b"1," * 1_900_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % n for n in range(300_000)) + b"}",
        b'{"query": "a", "titles": ["b"], "head_mask": {"off": [' + b"1," * 1_900_000 + b"1]}}",
        b'{"query": "a", "titles": ["b"], "head_mask": "' + b"1.1," * 900_000 + b'1.1"}',
    ):
        async with client(app) as session:
            async with asyncio.timeout(5):
                response = await session.post("/v1/score", content=body)
        assert response.status_code == 422
        assert len(response.content) < 1000


@pytest.mark.parametrize(
    "kind", [None, "application/json", "Application/JSON; charset=utf-8", "application/a+json"]
)
async def test_json_may_be_called_json_or_nothing(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    async with client(SHARED) as session:
        response = await session.post("/v1/score", content=orjson.dumps(SCORE), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/xml"},
        {"content-encoding": "gzip"},
    ],
)
async def test_another_type_of_body_is_a_415(headers: dict[str, str]) -> None:
    async with client(SHARED) as session:
        response = await session.post("/v1/score", content=orjson.dumps(SCORE), headers=headers)
    assert_error(response, 415, "unsupported_media_type")


async def test_unknown_paths_and_methods_have_the_error_shape() -> None:
    async with client(app_with()) as session:
        for path in ("/nope", "/v1", "/v1/score/", "/v1/Score", "/healthy", "/docs/..%2f", "/%00"):
            assert_error(await session.get(path), 404, "not_found")
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
            response = await session.request(method, "/v1/score")
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"
            if method != "HEAD":
                assert_error(response, 405, "method_not_allowed")
        response = await session.post("/v1/models", json={})
        assert_error(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "GET, HEAD"


async def test_head_is_get_without_the_body() -> None:
    async with client(app_with()) as session:
        for path in ("/health/live", "/v1/models", "/metrics", "/docs", "/docs/swagger-ui.css"):
            head, full = await session.head(path), await session.get(path)
            assert head.status_code == full.status_code == 200
            assert head.content == b""
            assert head.headers["content-type"] == full.headers["content-type"]


async def test_health_tells_alive_from_ready() -> None:
    app = create_app(Settings(), Metrics())
    assert (await get(app, "/health/live")).json() == {"status": "live"}
    assert "starting" in assert_error(await get(app, "/health/ready"), 503, "not_ready")
    app.state.backend = FakeBackend()
    assert (await get(app, "/health/ready")).json() == {"status": "ready"}
    app.state.backend.reason = "draining"
    assert "draining" in assert_error(await get(app, "/health/ready"), 503, "not_ready")
    assert (await get(app, "/health/live")).status_code == 200


async def test_requests_before_the_model_is_up_are_told_to_come_back() -> None:
    app = create_app(Settings(), Metrics())
    assert_error(await post(app, "/v1/score", SCORE), 503, "starting")
    for path in GETS:
        assert_error(await get(app, path), 503, "starting")


@pytest.mark.parametrize(
    ("error", "status", "kind", "shed"),
    [
        (QueueFull(2), 429, "queue_full", "queue_full"),
        (Draining(1), 503, "draining", "draining"),
        (DeadlineExceeded(), 504, "deadline_exceeded", "deadline"),
        (DeviceFailed("cuda"), 503, "device_failed", None),
        (OutOfMemory(), 503, "out_of_memory", None),
    ],
)
async def test_what_the_model_refuses_is_answered_and_counted_once(
    error: Exception, status: int, kind: str, shed: str | None
) -> None:
    app = app_with(FakeBackend(fails=error))
    assert_error(await post(app, "/v1/score", SCORE), status, kind)
    counted = {name: value for name, value in metrics_of(app).items() if "shed_total" in name and value}
    assert counted == ({f'headroom_shed_total{{reason="{shed}"}}': 1} if shed else {})


async def test_a_mask_the_model_refuses_is_the_callers_error() -> None:
    app = app_with(FakeBackend(fails=InvalidMask("layer 12 does not exist")))
    assert_error(await post(app, "/v1/score", SCORE), 422, "invalid_request", "head_mask")


async def test_a_defect_is_a_500_that_tells_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(FakeBackend(fails=ZeroDivisionError("secret detail")))
    with caplog.at_level(logging.ERROR, "headroom.api"):
        response = await post(app, "/v1/score", SCORE, **{"x-request-id": "abc-1"})
    message = assert_error(response, 500, "internal_error")
    assert "secret" not in message
    assert "abc-1" in caplog.text
    assert "secret detail" in caplog.text
    assert metrics_of(app)['headroom_requests_total{route="/v1/score",status="500"}'] == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", True),
        ("A1b2/c3+d4=:._", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("a<script>", False),
        ("é", False),
        ("", False),
    ],
)
async def test_a_plain_request_id_comes_back_and_any_other_is_replaced(given: str, kept: bool) -> None:
    exchange = Exchange(SHARED, "GET", "/health/live", [("X-Request-ID", given)])
    answer = await exchange.answer()
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.headers["x-request-id"].isascii()
    assert 1 <= len(answer.headers["x-request-id"]) <= 128


async def test_every_answer_is_counted_under_its_route_and_never_under_a_callers_words() -> None:
    app = app_with()
    await post(app, "/v1/score", SCORE)
    await post(app, "/v1/score", {})
    async with client(app) as session:
        await session.get("/v1/score")
        await session.get("/v1/secrets-of-a-caller")
        await session.get("/openapi.json")
        await session.get("/docs")
        await session.head("/health/live")
    found = metrics_of(app)
    counted = {name: value for name, value in found.items() if name.startswith("headroom_requests_total")}
    assert counted == {
        'headroom_requests_total{route="/v1/score",status="200"}': 1,
        'headroom_requests_total{route="/v1/score",status="422"}': 1,
        'headroom_requests_total{route="/v1/score",status="405"}': 1,
        'headroom_requests_total{route="unmatched",status="404"}': 1,
        'headroom_requests_total{route="/openapi.json",status="200"}': 1,
        'headroom_requests_total{route="/docs",status="200"}': 1,
        'headroom_requests_total{route="/health/live",status="200"}': 1,
    }
    for stage in ("tokenize", "queue", "inference", "respond"):
        assert found[f'headroom_stage_seconds_count{{stage="{stage}"}}'] == 1
    assert found['headroom_stage_seconds_sum{stage="inference"}'] == pytest.approx(0.0061)


async def test_metrics_are_prometheus_text() -> None:
    app = app_with()
    response = await get(app, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "headroom_ready" in samples(response.content)


async def test_the_documentation_loads_nothing_from_elsewhere() -> None:
    async with client(app_with()) as session:
        page = await session.get("/docs")
        assert page.status_code == 200
        assert "http://" not in page.text
        assert "https://" not in page.text
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
            assert f'"docs/{name}"' in page.text
            file = await session.get(f"/docs/{name}")
            assert file.status_code == 200
            assert len(file.content) > 500


async def test_the_document_names_this_servers_limits() -> None:
    document = (await get(app_with(max_pairs=7, max_columns=3, request_timeout_s=5), "/openapi.json")).json()
    score = document["components"]["schemas"]["ScoreRequest"]
    assert score["properties"]["titles"]["anyOf"][0]["maxItems"] == 7
    assert score["properties"]["pairs"]["anyOf"][0]["maxItems"] == 7
    assert score["properties"]["deadline_ms"]["anyOf"][0]["maximum"] == 5000
    assert document["components"]["schemas"]["CompareRequest"]["properties"]["masks"]["maxItems"] == 3
    assert score["additionalProperties"] is False
    assert set(document["paths"]["/v1/score"]["post"]["responses"]) == {
        *("200", "400", "408", "413", "415", "422", "429", "500", "503", "504"),
    }
    assert "securitySchemes" not in document["components"]


async def test_a_limit_that_was_set_is_the_one_that_holds() -> None:
    app = app_with(max_pairs=2, request_timeout_s=5)
    assert_error(
        await post(app, "/v1/score", {**SCORE, "titles": ["a"] * 3}), 422, "invalid_request", "titles"
    )
    assert_error(
        await post(app, "/v1/score", {**SCORE, "deadline_ms": 5001}), 422, "invalid_request", "deadline_ms"
    )


@pytest.mark.parametrize(("path", "body"), [("/v1/score", SCORE), ("/v1/outcomes", OUTCOMES)])
async def test_a_client_that_hangs_up_has_its_work_cancelled_and_counted(
    path: str, body: dict[str, Any]
) -> None:
    backend = FakeBackend(hangs=True)
    app = app_with(backend)
    exchange = Exchange(app, path=path, messages=[chunk(orjson.dumps(body), more=False)])
    await backend.started.wait()
    exchange.incoming.put_nowait(DISCONNECT)
    async with asyncio.timeout(5):
        await exchange.task
    assert backend.cancelled == 1
    found = metrics_of(app)
    assert found['headroom_shed_total{reason="disconnect"}'] == 1
    assert found[f'headroom_requests_total{{route="{path}",status="499"}}'] == 1


async def test_a_proxy_that_gives_up_cancels_the_work_too() -> None:
    backend = FakeBackend(hangs=True)
    app = app_with(backend)
    exchange = Exchange(app, messages=[chunk(orjson.dumps(SCORE), more=False)])
    await backend.started.wait()
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert backend.cancelled == 1
    assert metrics_of(app)['headroom_shed_total{reason="disconnect"}'] == 1


@pytest.mark.parametrize(
    ("settings", "path", "body"),
    [
        ({"request_timeout_s": 0.05}, "/v1/score", SCORE),
        ({}, "/v1/score", {**SCORE, "deadline_ms": 50}),
        ({"request_timeout_s": 0.05}, "/v1/outcomes", OUTCOMES),
    ],
)
async def test_time_runs_out_even_when_the_work_hangs(
    settings: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    backend = FakeBackend(hangs=True)
    app = app_with(backend, **settings)
    async with asyncio.timeout(5):
        assert_error(await post(app, path, body), 504, "deadline_exceeded")
    assert backend.cancelled == 1
    assert metrics_of(app)['headroom_shed_total{reason="deadline"}'] == 1


async def test_the_time_of_a_request_begins_with_its_arrival_and_not_with_its_body() -> None:
    """A body that takes longer than its own deadline leaves no time to score."""
    backend = FakeBackend(hangs=True)
    content = orjson.dumps({**SCORE, "deadline_ms": 50})
    exchange = Exchange(app_with(backend), messages=[chunk(content[:9], more=True)])
    await asyncio.sleep(0.06)
    exchange.incoming.put_nowait(chunk(content[9:], more=False))
    async with asyncio.timeout(5):
        answer = await exchange.answer()
    assert (answer.status, answer.error["type"]) == (504, "deadline_exceeded")


async def test_a_name_in_the_path_is_checked_like_a_field() -> None:
    response = await post(app_with(), f"/v1/experiments/{'x' * 65}/stop", {})
    assert_error(response, 422, "invalid_request", "path.name")
