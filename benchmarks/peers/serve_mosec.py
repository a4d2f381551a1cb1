"""mosec: a Rust front, Python workers with dynamic batching."""

from __future__ import annotations

import sys
from typing import Any

from mosec import Server, Worker

from benchmarks.peers import scoring


class ScoreWorker(Worker):
    """Takes and returns JSON, which is mosec's default."""

    def __init__(self) -> None:
        super().__init__()
        self.score = scoring.Scorer()

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Score a batch of requests."""
        return self.score(data)


if __name__ == "__main__":
    options = scoring.arguments()
    milliseconds = str(scoring.TIMEOUT_S * 1000)
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(options.port), "--timeout", milliseconds]
    sys.argv += ["--log-level", "warning"]
    server = Server()
    server.append_worker(
        ScoreWorker,
        num=options.workers,
        max_batch_size=scoring.MAX_REQUESTS,
        max_wait_time=int(scoring.WAIT_S * 1000),
        route="/v1/score",
    )
    server.run()
