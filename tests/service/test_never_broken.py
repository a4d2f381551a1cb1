"""A real service with `on_failure: original_order`: overload and a killed replica break no page."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.running import LIVE, Server, running

TITLES = [f"steel angle bracket {number}, 12-gauge, galvanized, for deck posts" for number in range(60)]
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/score", {"titles": TITLES}),
    ("/v2/rerank", {"documents": TITLES}),
    ("/v1/rerank", {"documents": TITLES, "return_documents": True}),
    ("/rerank", {"documents": TITLES}),
    ("/v1/rerank", {"documents": TITLES, "top_k": 100}),
    ("/rerank", {"texts": TITLES}),
]
CLIENTS = 48
"""Requests under way at once: several times what two replicas answer in the deadline below."""


def is_well_formed(content: Any) -> bool:
    """Return whether an answer holds each title once, in an order that a sort by score keeps."""
    is_ours = isinstance(content, dict) and "reranked" in content
    rows = content if isinstance(content, list) else content.get("results") or content["data"]
    scores = [row["score"] if "score" in row else row["relevance_score"] for row in rows]
    is_complete = sorted(row["index"] for row in rows) == list(range(len(TITLES)))
    return is_complete and (is_ours or scores == sorted(scores, reverse=True))


async def load(server: Server, requests: int, deadline_ms: float, *, kill_at: int | None) -> dict[str, Any]:
    """Send this many requests, CLIENTS at a time; kill one replica at the request of this number.

    Return how many answers are reranked, and by how much the service takes longer than the deadline. (This
    process is busy itself, so what it measures of a request says little about the service.)
    """
    late_ms: list[float] = []
    kinds: Counter[str] = Counter()
    numbers = iter(range(requests))

    async def caller(http: httpx.AsyncClient) -> None:
        for number in numbers:
            if number == kill_at:
                server.replicas()[0].kill()
            path, body = SHAPES[number % len(SHAPES)]
            # Each query is another one, so that nothing is known already.
            query = {"query": f"angle bracket {number}", "deadline_ms": deadline_ms}
            answer = await http.post(path, json=body | query)
            assert answer.status_code == 200, (number, path, answer.status_code, answer.text)
            assert is_well_formed(answer.json()), (number, path, answer.text)
            kinds[answer.headers["x-reranked"]] += 1
            total_ms = float(answer.headers["server-timing"].rpartition("total;dur=")[2])
            late_ms.append(total_ms - deadline_ms)

    limits = httpx.Limits(max_connections=CLIENTS)
    session = httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits)
    async with session as http, asyncio.TaskGroup() as callers:
        for _ in range(CLIENTS):
            callers.create_task(caller(http))
    late_ms.sort()
    return {"kinds": kinds, "late_ms_p99": late_ms[int(len(late_ms) * 0.99)]}


@pytest.mark.slow
@pytest.mark.parametrize("requests", [400])  # 5,000 take minutes
async def test_overload_and_a_killed_replica_break_no_page(
    requests: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))
    live = LIVE | {"on_failure": "original_order"}
    with running(tmp_path, model, live=live, replicas=2, max_queue_s=0.2) as server:
        overloaded = await load(server, requests, 300, kill_at=requests // 2)
        assert overloaded["kinds"]["true"], "nothing was scored at all"
        hopeless = await load(server, 60, 0.01, kill_at=None)
        assert not hopeless["kinds"]["true"]
        print(
            f"after the deadline, p99: {overloaded['late_ms_p99']:.0f} and {hopeless['late_ms_p99']:.0f} ms"
        )
