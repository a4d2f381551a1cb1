"""Other servers with the same engines: `python -m benchmarks.peers.servers ray|mosec …`.

Each scores batches of requests in the same way: tokenize, sort, score in batches of 64.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.peers.batch import padded
from benchmarks.peers.engines import SERVING

BATCH = 64
WINDOW = 128
MAX_REQUESTS = 8
"""Requests that a server may batch; with 20 titles each, its batches are full."""

WAIT_S = 0.005
"""How long a request may wait for others; under saturation, none waits."""

TIMEOUT_S = 120

THREADS = 2
"""Threads of all workers together, as for every engine."""


class Scorer:
    """A tokenizer and an engine, as BENCH_ENGINE (such as openvino:bf16) and BENCH_MODEL say."""

    def __init__(self) -> None:
        name, _, dtype = os.environ["BENCH_ENGINE"].partition(":")
        directory = Path(os.environ["BENCH_MODEL"])
        self._engine = SERVING[name](directory, dtype)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(WINDOW)

    def __call__(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return {"results": [{"index", "score"}]} for each {"query", "titles"}."""
        pairs = [(request["query"], title) for request in requests for title in request["titles"]]
        encoded = self._tokenizer.encode_batch(pairs)
        order = sorted(range(len(pairs)), key=lambda row: len(encoded[row].ids))
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens = [np.array(encoded[row].ids) for row in rows]
            firsts = [encoded[row].type_ids.count(0) for row in rows]
            scores[rows] = expected_grade(self._engine(padded(list(zip(tokens, firsts, strict=True)))))
        ends = np.cumsum([len(request["titles"]) for request in requests])[:-1]
        return [
            {"results": [{"index": index, "score": score} for index, score in enumerate(own.tolist())]}
            for own in np.split(scores, ends)
        ]


def expected_grade(logits: np.ndarray) -> np.ndarray:
    """Return the softmax's mean grade: (rows, grades) → (rows,)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    grades: np.ndarray = (weights / weights.sum(axis=1, keepdims=True)) @ np.arange(logits.shape[1])
    return grades


def serve_mosec(port: int, workers: int) -> None:
    """Serve with mosec: a Rust front, Python workers with dynamic batching, JSON by default."""
    from mosec import Server, Worker

    class ScoreWorker(Worker):
        def __init__(self) -> None:
            super().__init__()
            self.score = Scorer()

        def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return self.score(data)

    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(port), "--timeout", str(TIMEOUT_S * 1000)]
    sys.argv += ["--log-level", "warning"]
    server = Server()
    server.append_worker(
        ScoreWorker,
        num=workers,
        max_batch_size=MAX_REQUESTS,
        max_wait_time=int(WAIT_S * 1000),
        start_method="fork",  # the class is local, so that this module needs no mosec
        route="/v1/score",
    )
    server.run()


def serve_ray(port: int, _: int) -> None:
    """Serve with Ray Serve as its documentation shows: @serve.batch, behind Serve's own proxy."""
    import ray
    from ray import serve

    class Scoring:
        """The deployment. Ray sets OMP_NUM_THREADS to its num_cpus."""

        def __init__(self) -> None:
            self.scorer = Scorer()

        @serve.batch(max_batch_size=MAX_REQUESTS, batch_wait_timeout_s=WAIT_S)
        async def score(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return self.scorer(requests)

        async def __call__(self, request: Any) -> dict[str, Any]:
            answer: dict[str, Any] = await self.score(await request.json())
            return answer

    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # bind to 127.0.0.1 only
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment = serve.deployment(ray_actor_options={"num_cpus": 2}, max_ongoing_requests=1000)(Scoring)
    serve.run(deployment.bind(), route_prefix="/v1/score")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # after Ray's own, which aborts
    stop.wait()
    serve.shutdown()
    ray.shutdown()


def main() -> None:
    """Serve; the engine and the model are set as variables for the processes that a server starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("server", choices=("ray", "mosec"))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, choices=range(1, THREADS + 1), default=1)
    options = parser.parse_args()
    os.environ["BENCH_ENGINE"] = options.engine
    os.environ["BENCH_MODEL"] = options.model
    os.environ["OMP_NUM_THREADS"] = str(THREADS // options.workers)
    serve = serve_ray if options.server == "ray" else serve_mosec
    serve(options.port, options.workers)


if __name__ == "__main__":
    main()
