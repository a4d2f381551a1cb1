"""Ray Serve as its documentation shows: a deployment with @serve.batch, behind Serve's own proxy."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers import scoring


class Scoring:
    """The deployment. Ray sets OMP_NUM_THREADS to its num_cpus."""

    def __init__(self) -> None:
        self.scorer = scoring.Scorer()

    @serve.batch(max_batch_size=scoring.MAX_REQUESTS, batch_wait_timeout_s=scoring.WAIT_S)
    async def score(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Score a batch of requests."""
        return self.scorer(requests)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Score one request."""
        answer: dict[str, Any] = await self.score(await request.json())
        return answer


if __name__ == "__main__":
    options = scoring.arguments()
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # bind to 127.0.0.1 only
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    deployment = serve.deployment(ray_actor_options={"num_cpus": 2}, max_ongoing_requests=1000)(Scoring)
    serve.run(deployment.bind(), route_prefix="/v1/score")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # after Ray's own, which aborts
    stop.wait()
    serve.shutdown()
    ray.shutdown()
