"""The worker of serve_mosec, in a module of its own: mosec starts it in a new process, which imports it."""

from __future__ import annotations

from typing import Any

from mosec import Worker

from benchmarks.peers.scoring import Scorer


class ScoreWorker(Worker):
    """JSON in and out, which is mosec's default."""

    def __init__(self) -> None:
        super().__init__()
        self.score = Scorer()

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A batch of requests."""
        return self.score(data)
