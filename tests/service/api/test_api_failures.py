"""Work that fails, hangs or is given up: the status, what is counted, and that the work lets go first."""

import asyncio
import logging
from typing import Any

import orjson
import pytest

from headroom.service.api.post import answer
from headroom.service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
)
from tests.service.api.test_api import SCORE, app_with, assert_error, metrics_of, post
from tests.service.asgi import DISCONNECT, Exchange, chunk
from tests.service.fake_backend import FakeBackend

OUTCOMES = {
    "outcomes": [
        {"experiment": "e", "unit": "u", "metric": "click", "value": 1, "time": 1_700_000_000, "id": "1"}
    ]
}


class Panic(BaseException):
    """As of a library in Rust, such as tokenizers."""


@pytest.mark.parametrize("defect", [ZeroDivisionError, Panic])
async def test_a_defect_is_a_500_that_tells_nothing_and_is_logged(
    defect: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    app = app_with(FakeBackend(fails=defect("secret detail")))
    with caplog.at_level(logging.ERROR, "headroom.api"):
        response = await post(app, "/v1/score", SCORE, **{"x-request-id": "abc-1"})
    message = assert_error(response, 500, "internal_error")
    assert "secret" not in message
    assert "abc-1" in caplog.text
    assert "secret detail" in caplog.text
    assert metrics_of(app)['headroom_requests_total{route="/v1/score",status="500"}'] == 1


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


class Client:
    """Its connection's receiving end."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Takes as long as it is told, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = False

    async def run(self, seconds: float = 60.0) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.let_go = True
            raise
        return "done"


async def test_a_client_that_hangs_up_as_time_runs_out_is_no_cancellation() -> None:
    client, work = Client(), Work()

    async def both() -> None:
        await work.begun.wait()
        await asyncio.sleep(0.02)
        client.gone.set()

    ending = asyncio.create_task(both())
    with pytest.raises((ClientDisconnected, DeadlineExceeded)):
        await answer(work.run(), client.receive, timeout_s=0.02)
    await ending
    assert work.let_go


async def test_a_client_that_hangs_up_as_its_answer_comes_does_not_cancel_what_follows() -> None:
    client, finished = Client(), asyncio.Event()

    async def work() -> str:
        await finished.wait()
        return "done"

    async def request() -> str:
        result = await answer(work(), client.receive, timeout_s=60)
        await asyncio.sleep(0.01)  # it sends the answer
        return result

    waiting = asyncio.create_task(request())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    client.gone.set()  # the watch ends in the same turn of the loop as the work
    finished.set()
    assert await waiting == "done"
