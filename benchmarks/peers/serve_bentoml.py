"""BentoML: a batching service behind a service for single requests, as its documentation advises."""

from __future__ import annotations

import os
import sys
from typing import Any

import bentoml

from benchmarks.peers import scoring

TRAFFIC = {"timeout": scoring.TIMEOUT_S}
QUIET = {"access": {"enabled": False}}


@bentoml.service(workers=scoring.workers(), traffic=TRAFFIC, logging=QUIET)
class Scoring:
    """The service that runs the model."""

    def __init__(self) -> None:
        self.scorer = scoring.Scorer()

    @bentoml.api(batchable=True, max_batch_size=scoring.MAX_REQUESTS, max_latency_ms=scoring.TIMEOUT_S * 1000)
    def score(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Score a batch of requests."""
        return self.scorer(requests)


@bentoml.service(workers=1, traffic=TRAFFIC, logging=QUIET)
class Front:
    """The service that answers HTTP."""

    scoring = bentoml.depends(Scoring)

    @bentoml.api(route="/v1/score")
    async def score(self, query: str, titles: list[str]) -> dict[str, Any]:
        """Score one request."""
        answers = await self.scoring.to_async.score([{"query": query, "titles": titles}])
        return dict(answers[0])


if __name__ == "__main__":
    options = scoring.arguments()
    command = [sys.executable, "-m", "bentoml", "serve", "benchmarks.peers.serve_bentoml:Front"]
    command += ["--host", "127.0.0.1", "--port", str(options.port)]
    os.environ |= {
        "BENTOML_DO_NOT_TRACK": "True",
        "BENTOML_CONFIG_OPTIONS": "api_server.logging.access.enabled=false",
    }
    os.execv(sys.executable, command)
