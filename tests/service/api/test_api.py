"""The HTTP side as a caller meets it: shapes, statuses, headers, and the document that promises them."""

import re
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from headroom.service.observe.metrics import Metrics
from tests.service.asgi import Exchange, client
from tests.service.fake_backend import FakeBackend, app_with
from tests.service.metering import samples

SCORE = {"query": "angle bracket", "titles": ["Simpson Strong-Tie 12-Gauge Angle", ""]}
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
        *("stages", "reranked", "reason", "dropped"),
    ]
    assert list(body["head_mask"]) == "id spec heads_on heads units_on units layers_on layers".split()
    assert (body["head_mask"]["spec"], body["head_mask"]["heads_on"]) == ("2.3,7.*", 131)
    fields = "index grade label expected_grade score probabilities tokens unknown_tokens truncated"
    assert list(body["results"][1]) == [*fields.split(), "raw_score"], "a field without a value is left out"
    assert list(body["results"][0]) == list(body["results"][1])
    assert body["usage"] == {"pairs": 2, "tokens": 34}
    assert list(body["timing_ms"]) == ["tokenize", "queue", "inference", "total"]
    assert response.headers["server-timing"] == (
        "tokenize;dur=0.200, queue;dur=0.400, inference;dur=6.100, total;dur=7.000"
    )
    assert response.headers["x-config-version"] == "0123456789ab"


async def test_unknown_paths_and_methods_have_the_error_shape() -> None:
    async with client(app_with()) as session:
        for path in ("/nope", "/v1", "/v1/Score", "/v1/scores/", "/healthy", "/docs/..%2f", "/%00"):
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


async def test_every_path_tells_its_methods_to_one_that_it_lacks() -> None:
    paths = {re.sub(r"\{.*?\}", "x", route.path) for route in app_with().routes if isinstance(route, Route)}
    assert {"/openapi.json", "/docs", "/v1/score"} <= paths
    async with client(app_with()) as session:
        for path in paths:
            response = await session.put(path)
            assert response.status_code == 405, path
            allowed = response.headers["allow"]
            assert set(allowed.split(", ")) & {"GET", "POST"}, path
            assert path != "/" or allowed == "GET, HEAD, POST"  # of two routes


async def test_an_answer_names_the_config_that_it_was_made_under() -> None:
    class Reconfigured(FakeBackend):
        version = "old"

        @property
        def config_version(self) -> str:
            return self.version

        async def _work(self, request: object) -> None:
            await super()._work(request)
            self.version = "new"

    backend = Reconfigured()
    assert (await post(app_with(backend), "/v1/score", SCORE)).headers["x-config-version"] == "old"
    assert (await post(app_with(backend), "/v1/score", SCORE)).headers["x-config-version"] == "new"


async def test_head_is_get_without_the_body() -> None:
    async with client(app_with()) as session:
        for path in ("/health/live", "/v1/models", "/metrics", "/docs", "/docs/swagger-ui.css"):
            head, full = await session.head(path), await session.get(path)
            assert head.status_code == full.status_code == 200
            assert head.content == b""
            assert head.headers["content-type"] == full.headers["content-type"]


async def test_health_tells_alive_from_ready() -> None:
    app = app_with()
    app.state.backend = None
    assert (await get(app, "/health/live")).json() == {"status": "live"}
    assert "starting" in assert_error(await get(app, "/health/ready"), 503, "not_ready")
    assert_error(await get(app, "/v1/models"), 503, "starting")
    app.state.backend = FakeBackend()
    assert (await get(app, "/health/ready")).json() == {"status": "ready", "problem": None}
    app.state.backend.problem = "no experiments"
    assert (await get(app, "/health/ready")).json() == {"status": "ready", "problem": "no experiments"}
    app.state.backend.reason = "draining"
    assert "draining" in assert_error(await get(app, "/health/ready"), 503, "not_ready")
    assert (await get(app, "/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("", False),
    ],
)
async def test_a_plain_request_id_comes_back_and_any_other_is_replaced(given: str, kept: bool) -> None:
    exchange = Exchange(app_with(), "GET", "/health/live", [("X-Request-ID", given)])
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


async def test_the_document_names_this_servers_limits() -> None:
    document = (await get(app_with(max_pairs=7, request_timeout_s=5), "/openapi.json")).json()
    score = document["components"]["schemas"]["ScoreRequest"]
    assert score["properties"]["titles"]["anyOf"][0]["maxItems"] == 7
    assert score["properties"]["pairs"]["anyOf"][0]["maxItems"] == 7
    assert score["properties"]["deadline_ms"]["anyOf"][0]["maximum"] == 5000
    assert document["components"]["schemas"]["CompareRequest"]["properties"]["masks"]["maxItems"] == 64
    assert score["additionalProperties"] is False
    assert set(document["paths"]["/v1/score"]["post"]["responses"]) == {
        *("200", "400", "403", "408", "413", "415", "422", "429", "500", "503", "504")
    }
    assert "securitySchemes" not in document["components"]
