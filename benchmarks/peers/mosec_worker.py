"""The worker of serve_mosec, in a separate module because mosec's new process imports it."""

from __future__ import annotations

from typing import Any

from mosec import Worker

from benchmarks.peers.scoring import Scorer


class ScoreWorker(Worker):
    """Takes and returns JSON, which is mosec's default."""

    def __init__(self) -> None:
        super().__init__()
        self.score = Scorer()

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Score a batch of requests."""
        return self.score(data)
