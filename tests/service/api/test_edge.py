"""headroom.service.api.edge: what a client cannot make Serve do, and what Serve cannot say to a client."""

from typing import Any

import orjson
import pytest

from headroom.service.api.edge import MARK, STAMP, Message, Receive, Scope, Send, middlewares
from headroom.service.api.post import PostRoute
from tests.service.fake_backend import app_with

PLAIN = [(b"content-type", b"text/plain; charset=utf-8")]


def answering(status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"x") -> Any:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def at_the_edge(app: Any) -> Any:
    """The application as Serve wraps it."""
    (middleware,) = middlewares()
    return middleware.cls(app, *middleware.args, **middleware.kwargs)


async def ask(
    app: Any, headers: list[tuple[bytes, bytes]] | None = None, path: str = "/", method: str = "GET"
) -> tuple[int, dict[bytes, bytes], Any]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers or []}
    await at_the_edge(app)(scope, receive, send)
    start, body = sent
    content = body["body"]
    return start["status"], dict(start["headers"]), orjson.loads(content) if content[:1] == b"{" else content


def noting(seen: list[tuple[bytes, bytes]]) -> Any:
    """An application that notes the headers that reach it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await answering(200, [])(scope, receive, send)

    return app


STEERING = (
    b"x-request-timeout-seconds X-Request-Timeout-Seconds x-request-disconnect-disabled x-session-id "
    b"x_session_id serve_multiplexed_model_id serve-multiplexed-model-id x-serve-router-target"
)


@pytest.mark.parametrize(("haproxy", "kept"), [("1", True), ("0", False)])
async def test_a_time_of_arrival_counts_only_from_the_proxy(
    haproxy: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAProxy replaces what the client sends; without HAProxy nobody does."""
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    seen: list[tuple[bytes, bytes]] = []
    await ask(noting(seen), [(STAMP.encode(), b"x;1")])
    assert (dict(seen).get(STAMP.encode()) is not None) is kept


async def test_a_client_cannot_steer_serve_with_headers() -> None:
    seen: list[tuple[bytes, bytes]] = []
    await ask(noting(seen), [*((name, b"0") for name in STEERING.split()), (b"authorization", b"Bearer k")])
    assert seen == [(b"authorization", b"Bearer k")]


@pytest.mark.parametrize(
    ("haproxy", "method", "path", "watched"),
    [
        ("1", "POST", "/v1/score", True),
        ("1", "GET", "/v1/masks", False),
        ("0", "POST", "/v1/score", False),
    ],
)
async def test_in_a_replica_serve_leaves_clients_and_clocks_of_posts_to_us(
    haproxy: str, method: str, path: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    seen: list[tuple[bytes, bytes]] = []
    await ask(noting(seen), [(b"x-request-timeout-seconds", b"1")], path, method)
    ours = [(b"x-request-disconnect-disabled", b"?1"), (b"x-request-timeout-seconds", b"0")]
    assert seen == (ours if watched else [])


def test_the_requests_that_serve_leaves_to_us_are_those_that_we_watch() -> None:
    posts = [route for route in app_with().routes if "POST" in (getattr(route, "methods", None) or ())]
    assert len(posts) == 22
    assert all(isinstance(route, PostRoute) for route in posts)


@pytest.mark.parametrize(("value", "kept"), [(b"my-id_1", True), (b"\xff\xfe", False), (b"a" * 129, False)])
async def test_only_plain_request_ids_reach_serves_logs(value: bytes, kept: bool) -> None:
    seen: list[tuple[bytes, bytes]] = []
    await ask(noting(seen), [(b"x-request-id", value)])
    assert bool(seen) is kept


@pytest.mark.parametrize(
    ("made", "status", "kind"),
    [
        (404, 503, "unavailable"),
        (408, 504, "deadline_exceeded"),
        (500, 500, "internal_error"),
    ],
)
async def test_what_serve_says_itself_gets_the_error_shape(made: int, status: int, kind: str) -> None:
    answered, headers, body = await ask(answering(made, PLAIN))
    assert (answered, body["error"]["type"], body["error"]["param"]) == (status, kind, None)
    assert headers[b"content-type"] == b"application/json"
    assert (b"retry-after" in headers) == (status in (429, 503))


async def test_what_serve_says_itself_has_the_shape_of_its_path() -> None:
    _, _, body = await ask(answering(503, PLAIN), path="/v2/rerank")
    assert body["message"] == body["detail"] == body["error"]["message"]
    assert list((await ask(answering(503, PLAIN), path="/v1/score"))[2]) == ["error"]


@pytest.mark.parametrize(("haproxy", "told"), [("0", False), ("1", True)])
async def test_a_replica_tells_haproxys_health_check_how_it_is(
    haproxy: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    status, _, body = await ask(answering(503, PLAIN, b"DRAINING"), path="/-/healthz")
    assert status == 503
    assert (body == b"DRAINING") is told


@pytest.mark.parametrize("kind", [b"application/json", b"text/html; charset=utf-8", b"text/plain"])
async def test_what_the_application_says_passes_untouched(kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"x-request-id", b"1"), (b"X-Request-ID", b"1")]
    status, got, body = await ask(answering(404, [*headers, (MARK.encode(), b"1")], b'{"error":1}'))
    assert (status, body) == (404, {"error": 1})
    assert got == {b"content-type": kind, b"x-request-id": b"1"}
    assert (await ask(answering(200, PLAIN, b"metrics")))[2] == b"metrics"


@pytest.mark.parametrize(("haproxy", "kind"), [("0", "replica_lost"), ("1", "internal_error")])
async def test_silence_becomes_an_answer(haproxy: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        return None

    assert (await ask(app))[2]["error"]["type"] == kind


async def test_an_exception_is_answered_and_still_reaches_the_servers_log() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError("secret")

    with pytest.raises(RuntimeError, match="secret"):
        await at_the_edge(app)({"type": "http", "path": "/", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"]
