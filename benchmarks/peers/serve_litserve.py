"""LitServe: FastAPI in front, worker processes with dynamic batching."""

from __future__ import annotations

from typing import Any

import litserve

from benchmarks.peers import scoring


class ScoreAPI(litserve.LitAPI):
    """A LitServe API whose batches are lists of the requests' bodies."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's name
        """Load the model in the worker process."""
        self.score = scoring.Scorer()

    def predict(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Score a batch of requests."""
        return self.score(batch)


if __name__ == "__main__":
    options = scoring.arguments()
    api = ScoreAPI(max_batch_size=scoring.MAX_REQUESTS, batch_timeout=scoring.WAIT_S, api_path="/v1/score")
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=options.workers, timeout=scoring.TIMEOUT_S
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
    )
