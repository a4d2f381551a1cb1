"""Attacks on a server, as events of a scenario.

    python -m loadtest.soak.attacks slow-loris URL 20s
        attack for that time, and print what came back as JSON

A server should refuse an attack: with a 4xx, by closing the connection, or with a 503 while its replicas are
lost. Another 5xx, a 200, or no end within PATIENCE_S is wrong. Then the exit status is 1, and also if the
attack had no effect, because it reached no server.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import resource
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

from loadtest.plan import seconds

PATIENCE_S = 75.0
"""Longer than a server waits for headers, a body, or a replica that is frozen."""

MAX_WRONG = 20
AT_ONCE = 4
LORISES = 200
IDLE = 10_000
IDLE_OPENED = 0.1
"""Share of IDLE connections that must be opened, or the attack had no effect."""


class Target:
    """A server under attack until a time, and what came back from it."""

    def __init__(self, url: str, length_s: float) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.end = time.monotonic() + length_s
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    @property
    def reached(self) -> bool:
        """Whether the attack had an effect: something came back that is no refused connection."""
        return any(answer != "refused" for answer in self.answers)

    def note(self, what: str, answer: str) -> None:
        """Count an answer: a status, `closed`, `refused` or `hangs`."""
        self.answers[answer] += 1
        is_refused = not answer.isdigit() or 400 <= int(answer) < 500 or answer == "503"
        if (answer == "hangs" or not is_refused) and len(self.wrong) < MAX_WRONG:
            self.wrong.append(f"{what}: {answer}")

    async def exchange(self, what: str, data: bytes, *, trickles: bool = False) -> None:
        """Connect, send the data, then perhaps a byte a second, and note what comes back."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            self.note(what, "refused")
            return
        sending = asyncio.ensure_future(_send(writer, data, trickles))
        try:
            async with asyncio.timeout(PATIENCE_S):
                line = await reader.readline()
            words = line.split()
            self.note(what, words[1].decode() if len(words) > 1 else "closed")
        except TimeoutError:
            self.note(what, "hangs")
        except OSError:
            self.note(what, "closed")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, data: bytes, trickles: bool) -> None:
    writer.write(data)
    await writer.drain()
    while trickles:
        await asyncio.sleep(1)
        writer.write(b"x")
        await writer.drain()


def post(body: bytes, headers: str = "", path: str = "/v1/score", length: int | None = None) -> bytes:
    """Return a POST request."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def malformed_requests() -> dict[str, bytes]:
    """Return requests that are refused, by name: broken HTTP, bombs in headers and bodies, wrong JSON."""
    bomb = gzip.compress(bytes(100_000_000), compresslevel=9, mtime=0)
    get = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
    return {
        "no HTTP": b"\x16\x03\x01 hello\r\n\r\n",
        "two hosts": b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "a header of 1 MB": get + b"x: " + b"x" * 1_000_000 + b"\r\n\r\n",
        "10,000 headers": get + b"".join(b"x%d: 1\r\n" % n for n in range(10_000)) + b"\r\n",
        "a path of 20 KB": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        "two lengths": post(b"{}", "content-length: 9\r\n"),
        "a broken chunk": b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzzz\r\n",
        "a zip bomb (100 MB in 100 KB)": post(bomb, "content-encoding: gzip\r\n"),
        "a zip bomb without its name": post(bomb),
        "arrays 1,000,000 deep": post(b'{"query":' + b"[" * 1_000_000),
        "objects 600,000 deep": post(b'{"a":' * 600_000),
        "a million items": post(b'{"query": "a", "titles": [' + b"1," * 1_000_000 + b"1]}"),
        "a length of a terabyte": post(b"{}", length=10**12),
        "a body of 8 MB": post(b" " * 8_000_000),
        "a key twice": post(b'{"query": "a", "query": "b"}'),
        "not a number": post(b'{"query": NaN}'),
        "half a character": post(rb'{"query": "\ud800", "titles": ["a"]}'),
        "another title than text": post(b'{"query": "a", "titles": [7]}'),
        "a mask that the model has not": post(b'{"query": "a", "titles": ["b"], "head_mask": "999.999"}'),
    }


async def malformed(target: Target) -> None:
    """Send malformed requests one after the other, each on several connections at once.

    So what they need of a server's memory at the most is needed in the first attack, and not by chance later.
    """
    requests = malformed_requests()
    while not target.is_over:
        for name, data in requests.items():
            await asyncio.gather(*(target.exchange(name, data) for _ in range(AT_ONCE)))
            await asyncio.sleep(0.05)


async def slow_loris(target: Target) -> None:
    """Send headers, or bodies, a byte a second; the server has to end each of them in time."""
    starts = [
        ("slow headers", b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "),
        ("a slow body", post(b'{"q": "', length=99)),
    ]

    async def loris(what: str, start: bytes) -> None:
        while not target.is_over:
            await target.exchange(what, start, trickles=True)

    await asyncio.gather(*(loris(*starts[number % 2]) for number in range(LORISES)))


async def hang_ups(target: Target) -> None:
    """Ask for a hundred titles, ten times a second, and leave before the answer."""
    body = json.dumps({"query": "angle bracket", "titles": ["steel angle bracket, 12 gauge"] * 100}).encode()
    draw = random.Random(1)
    while not target.is_over:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(post(body))
            await asyncio.sleep(draw.uniform(0, 0.05))
            writer.transport.abort()
            target.answers["hung up"] += 1
        await asyncio.sleep(0.1)


async def idle(target: Target) -> None:
    """Open thousands of connections and send nothing on them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else 1_048_576
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    writers: list[asyncio.StreamWriter] = []
    while not target.is_over:
        for _ in range(min(200, IDLE - len(writers), limit - 500 - len(writers))):
            with contextlib.suppress(OSError):
                writers.append((await asyncio.open_connection(target.host, target.port))[1])
        await asyncio.sleep(0.05)
    if len(writers) >= IDLE_OPENED * IDLE:
        target.answers["opened"] = len(writers)
    for writer in writers:
        writer.transport.abort()


ATTACKS = {"hang-ups": hang_ups, "slow-loris": slow_loris, "malformed": malformed, "idle": idle}


def main(arguments: list[str]) -> int:
    """Attack. Exit status 1: an answer was wrong or the attack had no effect; 2: the arguments are wrong."""
    match arguments:
        case [name, url, length] if name in ATTACKS:
            target = Target(url, seconds(length))
            asyncio.run(ATTACKS[name](target))
            print(json.dumps({"answers": dict(sorted(target.answers.items())), "wrong": target.wrong}))
            return 1 if target.wrong or not target.reached else 0
    print(f"{__doc__}\nThe attacks: {', '.join(ATTACKS)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
