"""A client that costs little: its requests are written in advance and go out as soon as one is answered."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from loadtest.pairs import made_up_pairs

KNOWN = 300
"""Requests that come again and again if texts are to be known; their titles are some 2,000."""


class Reading(NamedTuple):
    """The counts of one measurement: answers with status 200, failures, and the seconds it took.

    Failures are other answers, and requests whose connection was lost; those of the short start count too.
    """

    answered: int
    failed: int
    seconds: float


class Traffic:
    """Requests of `titles` titles each as bytes; `new` ones hold texts that no request before them held."""

    def __init__(self, titles: int, *, new: bool, seed: int = 0) -> None:
        self._titles = titles
        self._new = new
        self._rng = np.random.default_rng(seed)
        self._pairs = made_up_pairs(1)
        self._words = np.array(" ".join(title for _, title in self._pairs).split())
        self._numbers = itertools.count(seed * 1_000_000)

    def requests(self, count: int, host: str) -> Iterator[bytes]:
        """Return at most `count` requests if they are new, else KNOWN ones without end."""
        some = [self._request(host) for _ in range(count if self._new else KNOWN)]
        return iter(some) if self._new else itertools.cycle(some)

    def _request(self, host: str) -> bytes:
        rng, pairs = self._rng, self._pairs
        chosen = rng.integers(len(pairs), size=self._titles + 1)
        texts = [pairs[number][1] for number in chosen]
        if self._new:  # as long as real titles; the number makes a text of known words a new one
            texts = [
                " ".join([*self._words[rng.integers(len(self._words), size=len(text.split()) - 1)], word])
                for text, word in zip(texts, map(str, self._numbers), strict=False)
            ]
        body = json.dumps({"query": pairs[chosen[0]][0], "titles": texts[1:]}).encode()
        head = f"POST /v1/score HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def load(
    url: str, requests: Iterator[bytes], *, connections: int, seconds: float, at_edge: Callable[[], None]
) -> Reading:
    """Keep every connection busy; count for `seconds` after a short start, or until the requests are used up.

    at_edge: called when the count begins and when it ends.
    """
    loop, counts, over = asyncio.get_running_loop(), _Counts(), asyncio.Event()
    address = urlsplit(url)
    host, port = address.hostname, address.port
    assert host is not None
    assert port is not None
    for _ in range(connections):
        await loop.create_connection(lambda: _Connection(requests, counts, over), host, port)
    await asyncio.sleep(min(0.5, seconds))
    began, answered = loop.time(), counts.answered
    at_edge()
    try:
        await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        over.set()
    at_edge()
    reading = Reading(counts.answered - answered, counts.failed, loop.time() - began)
    while counts.open:
        await asyncio.sleep(0.01)
    return reading


class _Counts:
    answered = failed = open = 0


class _Connection(asyncio.Protocol):
    """Sends a request, reads its answer, which says its length, and goes on until `over`."""

    def __init__(self, requests: Iterator[bytes], counts: _Counts, over: asyncio.Event) -> None:
        self._requests = requests
        self._counts = counts
        self._over = over
        self._read = bytearray()
        self._end = 0
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._counts.open += 1
        self._send()

    def connection_lost(self, _: Exception | None) -> None:
        self._counts.open -= 1
        self._counts.failed += self._is_waiting

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._end:
            head = self._read.find(b"\r\n\r\n")
            if head < 0:
                return
            length = self._read[:head].lower().partition(b"content-length:")[2].split()[0]
            self._end = head + 4 + int(length)
        if len(self._read) >= self._end:
            is_ok = self._read.startswith(b"HTTP/1.1 200")
            self._counts.answered += is_ok
            self._counts.failed += not is_ok
            self._read.clear()
            self._end = 0
            self._send()

    def _send(self) -> None:
        request = None if self._over.is_set() else next(self._requests, None)
        self._is_waiting = request is not None
        if request is None:
            self._over.set()
            self._transport.close()
        else:
            self._transport.write(request)
