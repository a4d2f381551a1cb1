"""What a hostile or careless client cannot do: send too much, too slowly, too often, or without a key."""

import asyncio

import orjson
import pytest

from headroom.service.api import body
from tests.service.api.test_api import SCORE, app_with, assert_error, metrics_of
from tests.service.asgi import DISCONNECT, Exchange, chunk, client
from tests.service.fake_backend import FakeBackend

BODY = orjson.dumps(SCORE)


async def refused(exchange: Exchange) -> int:
    """Waits for the 413, which is sent while the body still arrives; returns how many parts of it came."""
    async with asyncio.timeout(5):
        while len(exchange.sent) < 2:
            await asyncio.sleep(0)
    received = exchange.received
    assert exchange.sent[0]["status"] == 413
    assert orjson.loads(exchange.sent[1]["body"])["error"]["type"] == "body_too_large"
    return received


async def test_a_body_announced_too_large_is_refused_before_a_byte_is_read() -> None:
    app = app_with(max_body_bytes=1000)
    for length in ("1001", "9" * 30, "9" * 5000):
        exchange = Exchange(app, headers=[("Content-Length", length)])
        assert await refused(exchange) == 0
        exchange.incoming.put_nowait(DISCONNECT)
        assert (await exchange.answer()).headers["connection"] == "close"


async def test_a_body_that_grows_too_large_is_refused_while_it_is_read() -> None:
    app = app_with(max_body_bytes=1000)
    exchange = Exchange(app, messages=[chunk(b" " * 400, more=True)] * 3)
    assert await refused(exchange) == 3
    exchange.incoming.put_nowait(chunk(b" " * 400, more=False))
    await exchange.answer()
    assert exchange.received == 4


async def test_a_refused_body_is_read_on_for_so_many_bytes_and_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = app_with(max_body_bytes=1000)
    monkeypatch.setattr(body, "DRAIN_BYTES", 5000)
    endless = Exchange(app, messages=[chunk(b" " * 500, more=True)] * 100)
    async with asyncio.timeout(5):
        await endless.answer()
    assert endless.received == 3 + 10
    monkeypatch.setattr(body, "DRAIN_SECONDS", 0.05)
    silent = Exchange(app, messages=[chunk(b" " * 1001, more=True)])
    async with asyncio.timeout(5):
        assert (await silent.answer()).status == 413


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    app = app_with(max_body_bytes=len(BODY))
    async with client(app) as session:
        assert (await session.post("/v1/score", content=BODY)).status_code == 200
        response = await session.post("/v1/score", content=BODY + b" ")
        assert_error(response, 413, "body_too_large")


async def test_a_body_that_trickles_cannot_hold_on_by_sending_a_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.1)
    exchange = Exchange(app_with())

    async def trickle() -> None:
        while not exchange.task.done():
            exchange.incoming.put_nowait(chunk(b" ", more=True))
            await asyncio.sleep(0.005)

    feeder = asyncio.create_task(trickle())
    async with asyncio.timeout(5):
        answer = await exchange.answer()
        await feeder
    assert answer.status == 408


async def test_a_client_that_hangs_up_half_way_through_its_body_is_counted() -> None:
    backend = FakeBackend()
    app = app_with(backend)
    exchange = Exchange(app, messages=[chunk(b"{", more=True), DISCONNECT])
    async with asyncio.timeout(5):
        await exchange.task
    assert backend.requests == []
    assert metrics_of(app)['headroom_shed_total{reason="disconnect"}'] == 1


OPEN = (
    *("/", "/health/live", "/health/ready", "/docs/docs.js", "/docs/swagger-ui.css"),
    *("/health", "/ping", "/v2/health/live", "/v2/health/ready", "/health/live/", "//health/live"),
)
CLOSED = (
    *("/v1/models", "/openapi.json", "/metrics", "/docs", "/nope", "/healthy", "/docs/", "/docs/nope"),
    *("/health/../metrics", "//metrics", "/metrics/", "/v1/score"),
)


@pytest.mark.parametrize("path", OPEN)
async def test_with_keys_health_and_the_pages_stay_open(path: str) -> None:
    assert (await Exchange(app_with(api_keys="alpha"), "GET", path).answer()).status == 200


@pytest.mark.parametrize("path", CLOSED)
async def test_with_keys_everything_else_is_closed(path: str) -> None:
    app = app_with(api_keys="alpha")
    for wrong in (
        None,
        "",
        "alpha",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic alpha",
        "Basic YWxwaGE6",  # the key as the name
        "Bearer alpha x",
        "Bearer ÿ",
    ):
        headers = [] if wrong is None else [("Authorization", wrong)]
        answer = await Exchange(app, "GET", path, headers).answer()
        assert (answer.status, answer.error["type"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for right in ("Bearer alpha", "bearer alpha", "BEARER   alpha ", "Basic aGVhZHJvb206YWxwaGE="):
        answer = await Exchange(app, "GET", path, [("Authorization", right)]).answer()
        assert answer.status in (200, 307, 404, 405)


async def test_a_stranger_is_refused_before_his_body_is_read() -> None:
    backend = FakeBackend()
    app = app_with(backend, api_keys="alpha")
    exchange = Exchange(app, messages=[chunk(BODY, more=False)])
    assert (await exchange.answer()).status == 401
    assert exchange.received == 0
    assert backend.requests == []
    assert metrics_of(app)['headroom_requests_total{route="/v1/score",status="401"}'] == 1


async def test_a_body_over_the_keys_rate_is_not_parsed_unless_it_may_keep_the_order() -> None:
    """Parsing and checking 4 MB takes 30 ms, in which no other request goes on."""
    app = app_with(api_keys="slow;rate=0.01")
    async with client(app) as session:
        slow = {"authorization": "Bearer slow"}
        assert (await session.post("/v1/score", content=BODY, headers=slow)).status_code == 200
        no_json = await session.post("/v1/score", content=b"{" * 1000, headers=slow)
        assert_error(no_json, 429, "rate_limited")
        asking = await session.post("/v1/score", content=b'{"on_failure": "original_order"', headers=slow)
        assert_error(asking, 400, "invalid_json")


async def test_the_bodies_of_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, 400 bodies of 4 MB at once fill the memory of a replica."""
    monkeypatch.setattr(body, "MAX_HELD_BYTES", 3 * len(BODY))
    backend = FakeBackend(hangs=True)
    app = app_with(backend)
    held = [Exchange(app, messages=[chunk(BODY, more=False)]) for _ in range(2)]
    while len(backend.requests) < 2:
        await asyncio.sleep(0)
    half = Exchange(app, messages=[chunk(BODY[:-1], more=True)])  # its sender may take its time
    while half.received < 1:
        await asyncio.sleep(0)
    refused_half_way = Exchange(app, messages=[chunk(BODY[:2], more=True), DISCONNECT])
    answer = await refused_half_way.answer()
    assert (answer.status, answer.error["type"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["connection"] == "close"
    assert metrics_of(app)['headroom_shed_total{reason="queue_full"}'] == 1
    held[0].incoming.put_nowait(DISCONNECT)  # gives its bytes back
    await held[0].task
    taken = Exchange(app, messages=[chunk(BODY, more=False)])
    while len(backend.requests) < 3:
        await asyncio.sleep(0)
    for exchange in (held[1], half, taken):
        exchange.incoming.put_nowait(DISCONNECT)
        await exchange.task


async def test_a_body_alone_may_be_larger_than_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_HELD_BYTES", 1)
    async with client(app_with()) as session:
        for _ in range(2):
            assert (await session.post("/v1/score", content=BODY)).status_code == 200
