"""Sends load to a server: the load tester's runs, and a client in a loop."""

import asyncio
import itertools
import json
import math
import sys
import threading
from collections.abc import Iterable
from functools import cache
from typing import Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from headroom.loadtest import find_max, running
from headroom.loadtest.histogram import Histogram
from headroom.loadtest.judging import invalid_because
from headroom.loadtest.pairs import Pair, made_up_pairs
from headroom.loadtest.plan import Plan
from headroom.loadtest.running import Outcome

SATURATING = 1.5
"""Rate that is sent for throughput, relative to the rate that saturates the server."""

Texts = tuple[str, list[str]]
"""A query and its titles."""

MAX_LAG_S = 0.05
"""How late the load generator may send a request before a run is invalid."""


def plan_for(url: str) -> Plan:
    """Return the plan that all measurements of our server vary."""
    return Plan(url=url, timeout=5.0, connections=4096, warmup=1.0, max_lag=MAX_LAG_S, slo="p99=1s")


class LoadRuns:
    """Runs plans. invalid: why runs say nothing about the server, because the client was the limit."""

    def __init__(self) -> None:
        self.invalid: list[str] = []

    def run(self, plan: Plan, name: str) -> Outcome:
        """Run the plan; `name` stands before each reason for which it is invalid."""
        outcome = running.run(plan)
        self.invalid += [f"{name}: {reason}" for reason in invalid_because(outcome)]
        return outcome

    def saturate(self, plan: Plan, peak: float, fill: float, name: str) -> Outcome:
        """Run the plan at a rate that saturates the server. fill: seconds until its queue is full."""
        return self.run(plan.changed(rate=SATURATING * peak, warmup=fill), name)


def peak_rate(plan: Plan) -> float:
    """Return the requests per second that saturate the server."""
    say = lambda line: print(f"benchmarks: {line}", file=sys.stderr, flush=True)  # noqa: E731
    return find_max.saturation(plan.changed(warmup=0.0), running.run, say)


def milliseconds(histogram: Histogram, percent: float) -> float:
    """Return a percentile; NaN if nothing was counted."""
    value = histogram.percentile_ms(percent)
    return math.nan if value is None else float(value)


def texts(titles: int, count: int, *, new: bool = False, seed: int = 0) -> list[Texts]:
    """Return queries with `titles` titles each, drawn from the load tester's pairs.

    new: each title is made of random words of theirs, as long as a real one, and no other has its text.
    """
    pairs, vocabulary = _pairs_and_words()
    rng = np.random.default_rng(seed)
    numbers = itertools.count(seed * 1_000_000)

    def title() -> str:
        text = pairs[rng.integers(len(pairs))][1]
        if not new:
            return text
        words = vocabulary[rng.integers(len(vocabulary), size=len(text.split()) - 1)]
        return " ".join([*words, str(next(numbers))])

    return [(pairs[rng.integers(len(pairs))][0], [title() for _ in range(titles)]) for _ in range(count)]


@cache
def _pairs_and_words() -> tuple[list[Pair], NDArray[np.str_]]:
    """Return the load tester's pairs and all words of their titles, which take a quarter of a second."""
    pairs = made_up_pairs(seed=1)
    return pairs, np.array(" ".join(title for _, title in pairs).split())


def bodies(requests: Iterable[Texts]) -> list[bytes]:
    """Return the bodies of POST /v1/score."""
    return [json.dumps({"query": query, "titles": titles}).encode() for query, titles in requests]


class Client:
    """Sends a request on each connection when the last one is answered, in a thread, until it is closed.

    answered: answers with status 200. failed: other answers, and requests whose connection was lost.
    """

    def __init__(self, url: str, bodies: Iterable[bytes], connections: int = 1) -> None:
        self.answered = self.failed = 0
        self._address = urlsplit(url)
        self._bodies = iter(bodies)
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(connections)), daemon=True)

    def start(self) -> Self:
        """Start to send."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Wait for the answers under way and stop."""
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise RuntimeError if a request has failed: answers are not counted beside failures."""
        if self.failed:
            raise RuntimeError(f"{self.failed} requests failed, {self.answered} were answered")

    async def _run(self, connections: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._connection())

    async def _connection(self) -> None:
        while not self._over.is_set():
            try:
                if await self._send_all():
                    return
            except (OSError, asyncio.IncompleteReadError):
                self.failed += 1
            await asyncio.sleep(0.1)

    async def _send_all(self) -> bool:
        """Send on one connection; return True when nothing is left to send, False after an error's answer."""
        assert self._address.hostname is not None
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        head = (
            f"POST /v1/score HTTP/1.1\r\nhost: {self._address.netloc}\r\ncontent-type: application/json\r\n"
        )
        try:
            while not self._over.is_set() and (body := next(self._bodies, None)) is not None:
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split()[0]))
                if not answer.startswith(b"HTTP/1.1 200"):
                    self.failed += 1
                    return False
                self.answered += 1
        finally:
            writer.close()
        return True
