"""Attacks on a server, as events of a scenario.

    python -m benchmarks.soak.attacks slow-loris URL 20s
        attack for that time, and print what came back as JSON

A server should refuse an attack: with a 4xx, by closing the connection, or with a 503 while its replicas are
lost. Another 5xx, a 200, or no end within PATIENCE_S is wrong. Then the exit status is 1, and also if the
attack had no effect, because it reached no server.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

from headroom.loadtest.plan import seconds

PATIENCE_S = 75.0
"""Longer than a server waits for headers, a body, or a replica that is frozen."""

MAX_WRONG = 20
LORISES = 200


class Target:
    """A server under attack until a time, and what came back from it."""

    def __init__(self, url: str, length_s: float) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 80
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

    async def trickle(self, what: str, data: bytes) -> None:
        """Connect, send the data and then a byte a second, and note what comes back."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            self.note(what, "refused")
            return
        sending = asyncio.ensure_future(_send(writer, data))
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


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
    while True:
        await asyncio.sleep(1)
        writer.write(b"x")
        await writer.drain()


def post(body: bytes, length: int | None = None) -> bytes:
    """Return a POST request. length: that it announces; default: the body's."""
    head = "POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


STARTS = [
    ("slow headers", b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "),
    ("a slow body", post(b'{"q": "', length=99)),
]


async def slow_loris(target: Target) -> None:
    """Send headers, or bodies, a byte a second; the server has to end each of them in time."""

    async def loris(what: str, start: bytes) -> None:
        while not target.is_over:
            await target.trickle(what, start)

    await asyncio.gather(*(loris(*STARTS[number % 2]) for number in range(LORISES)))


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


ATTACKS = {"hang-ups": hang_ups, "slow-loris": slow_loris}


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
