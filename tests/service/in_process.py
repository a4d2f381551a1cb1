"""A replica with a real, small network and its HTTP side, all in the process of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import yaml
from fastapi import FastAPI

from headroom.service.api import create_app
from headroom.service.config import file as config_file
from headroom.service.config import key_file
from headroom.service.config.file import ConfigFile
from headroom.service.config.settings import LiveConfig, Settings
from headroom.service.observe.metrics import Metrics
from headroom.service.replica import Replica
from tests.service.asgi import client

if TYPE_CHECKING:
    from headroom.service.observe.traces import Traces

QUERY = "angle bracket"
in_session = pytest.mark.asyncio(loop_scope="session")
"""Marks the tests that use the service `shared`."""
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws", "angle", "steel bracket, black " * 30]
CONFIG: dict[str, Any] = {
    "masks": {"some": "random:0.5@7"},
    "variants": [
        {"name": "full"},
        {"name": "masked", "head_mask": "1.0-2"},
        {"name": "cut", "head_mask": "@some", "sliced": True},
    ],
}


class Service:
    """A running replica behind its HTTP side."""

    def __init__(self, app: FastAPI, replica: Replica, http: httpx.AsyncClient, metrics: Metrics) -> None:
        self.app = app
        self.replica = replica
        self.http = http
        self.metrics = metrics

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    async def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def metric(self, line: str) -> float:
        """The value of the series that starts with `line`."""
        for row in self.metrics.render().decode().splitlines():
            if row.startswith(line):
                return float(row.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def serve(
    model: Path,
    config: LiveConfig | dict[str, Any] | None = None,
    *,
    threads: int = 1,
    traces: Traces | None = None,
    nodes: int = 1,
    **settings: Any,
) -> AsyncIterator[Service]:
    # A wait that no machine reaches: only tests of the limits are to meet them.
    settings = {"dtype": "float32", "max_queue_s": 60.0, "service_name": "headroom"} | settings
    options = Settings(model=str(model), device="cpu", **settings)
    metrics = Metrics()
    live = LiveConfig.model_validate(config or CONFIG)
    app = create_app(options, metrics, traces)
    background = key_file.background(options, app.state.keys, metrics)
    replica = await Replica.start(
        options, live, metrics, threads=threads, nodes=lambda: nodes, background=background
    )
    app.state.backend = replica
    try:
        async with client(app) as http:
            yield Service(app, replica, http, metrics)
    finally:
        await replica.drain()


def read_config(live: dict[str, Any], **arguments: Any) -> ConfigFile:
    """Read a config file with this `user_config` and these arguments, as `headroom serve` does."""
    application = {"args": arguments, "deployments": [{"name": "Relevance", "user_config": live}]}
    text = yaml.safe_dump({"applications": [application]})
    return config_file.read(text.encode(), Path("serve.yaml"), config_file.Overrides())


def check_scores(results: Sequence[Mapping[str, Any]], expected: Any) -> None:
    """Check the scores of an answer's results."""
    np.testing.assert_allclose([row["score"] for row in results], expected, atol=1e-5)


def pairs() -> list[tuple[str, str]]:
    """The query with each of the titles."""
    return [(QUERY, title) for title in TITLES]


LONG_QUEUE_TOKENS = 256
LIMITS: dict[str, Any] = {
    "max_batch_tokens": 64,
    "max_queue_tokens": 10**6,
    "max_queue_s": 1e6,  # however slow the machine, nothing is refused
    "request_timeout_s": 1e6,
}
"""Settings of such a service."""


@asynccontextmanager
async def long_queue(service: Service) -> AsyncIterator[None]:
    """Keep more than LONG_QUEUE_TOKENS in the queue, by requests that would take long."""
    long = [
        asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 250, variant="full"))
        for _ in range(4)
    ]
    scheduler = service.replica.scheduler
    scheduler._queue._max_age_s = 1e6  # the long requests take no part of the small batches
    while len(scheduler._requests) < len(long):
        assert not any(request.done() for request in long), "refused, or too short"
        await asyncio.sleep(0)
    yield
    assert scheduler.queued_tokens > LONG_QUEUE_TOKENS, "too short for the test to mean something"
    for request in long:
        request.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    assert not scheduler.queued_tokens
