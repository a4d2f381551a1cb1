"""Helpers of the service benchmark: the model alone, a client in a loop, and memory."""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import psutil
import torch

from loadtest.pairs import made_up_pairs
from models.checkpoint.hub import DEFAULT
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.cores import cores

POOL = 2000
BATCH_TOKENS = 1024  # the server's budget on a CPU
READY_S = 20.0
IN_A_ROW = 30  # answers with the variant; replicas answer in turn


class Requests:
    """Requests of `titles` titles each, made from the load tester's pairs.

    words: number of words of each title, drawn from these titles; None keeps the titles.
    """

    def __init__(self, titles: int, words: int | None = None) -> None:
        pairs = made_up_pairs(seed=1)
        rng = np.random.default_rng(0)
        vocabulary = np.array(" ".join(title for _, title in pairs).split())

        def some() -> list[str]:
            if words is None:
                return [pairs[i][1] for i in rng.integers(len(pairs), size=titles)]
            return [" ".join(rng.choice(vocabulary, words)) for _ in range(titles)]

        self.texts = [(pairs[rng.integers(len(pairs))][0], some()) for _ in range(max(2, POOL // titles))]
        self._next = 0

    def body(self) -> bytes:
        """Return the body of the next request as JSON."""
        query, titles = self.texts[self._next % len(self.texts)]
        self._next += 1
        return json.dumps({"query": query, "titles": titles}).encode()


class ModelAlone:
    """A model that scores the pairs of such requests without a server, in batches as the server makes them.

    It runs like the server: several batches at once with one core each, or a single pair on all cores. Texts
    are tokenised in advance.
    """

    def __init__(self, titles: int, model: Path = DEFAULT) -> None:
        self.cores = cores()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self.cores)
        self._classifier = Classifier.load(model)
        texts = [(query, title) for query, titles in Requests(titles).texts for title in titles]
        pairs = self._classifier.tokenizer.encode(texts)
        self._one = pairs[0]
        self._batches = _cut(pairs)
        self._pool = ThreadPoolExecutor(self.cores, initializer=torch.set_num_threads, initargs=(1,))
        self.pairs_per_second(0.5)

    def pairs_per_second(self, seconds: float) -> float:
        """Return the pairs per second of as many batches as fit the time."""
        began = time.perf_counter()
        turns = itertools.cycle(self._batches)

        def work() -> int:
            done = 0
            while time.perf_counter() - began < seconds:
                batch = next(turns)
                self._classifier.scores(self._classifier.forward(batch))
                done += len(batch)
            return done

        done = sum(self._pool.map(lambda _: work(), range(self.cores)))
        return done / (time.perf_counter() - began)

    def one_pair_ms(self, times: int = 50) -> float:
        """Return the median time of a forward pass of one pair."""
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            self._classifier.scores(self._classifier.forward([self._one]))
            taken.append(time.perf_counter() - began)
            time.sleep(0.02)  # like the pause between two requests, in which the processor cools down
        return statistics.median(taken) * 1000

    def close(self) -> None:
        """Restore the process's number of threads."""
        self._pool.shutdown()
        torch.set_num_threads(self._threads)


def _cut(pairs: list[EncodedPair]) -> list[list[EncodedPair]]:
    batches: list[list[EncodedPair]] = [[]]
    tokens = 0
    for pair in pairs:
        if tokens + len(pair) > BATCH_TOKENS:
            batches.append([])
            tokens = 0
        batches[-1].append(pair)
        tokens += len(pair)
    return batches


class Loop:
    """A client that sends the next request when the last one is answered, until the block ends."""

    def __init__(self, url: str, requests: Requests) -> None:
        self._address = urlsplit(url).netloc
        self._requests = requests
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered = self.failed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        headers = {"content-type": "application/json"}
        while not self._over.is_set():
            try:
                connection.request("POST", "/v1/score", self._requests.body(), headers)
                response = connection.getresponse()
                response.read()
                answered = response.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                answered = False
            self.answered += answered
            self.failed += not answered
            if not answered:
                self._over.wait(0.1)
        connection.close()


def server_memory(pid: int) -> int:
    """Return the resident bytes of the replicas of the server with this process id."""
    family = psutil.Process(pid).children(recursive=True)
    return sum(
        process.memory_info().rss for process in family if "ServeReplica" in " ".join(process.cmdline())
    )


def wait_for_variant(url: str, name: str) -> None:
    """Wait until many answers in a row, so probably all replicas, know the variant. Raises TimeoutError."""
    deadline = time.monotonic() + READY_S
    in_a_row = 0
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/v1/variants", timeout=5) as response:
            listed: dict[str, Any] = json.load(response)
        in_a_row = in_a_row + 1 if any(variant["name"] == name for variant in listed["variants"]) else 0
        if in_a_row == IN_A_ROW:
            return
        time.sleep(0.02)
    raise TimeoutError(f"the server does not serve variant {name!r}")
