"""Measures what the shared score cache saves: our server with a Redis beside one without, in turns.

Both serve the shipped model. A client with a few connections sends requests of 20 titles, each when the last
one is answered.
"""

import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import yaml

from benchmarks.load import Client, Texts, bodies, texts
from benchmarks.measure import Ratio, turns
from benchmarks.report import Report, at_least, times_as_fast
from benchmarks.serving import CONFIG, TITLES, Server, Start, headroom
from headroom.models.checkpoint.hub import DEFAULT

ROUNDS = 15
SECONDS = 2.0
"""Short turns, and many: what else a shared machine does changes within seconds."""

SETTLE_S = 1.0
"""Seconds before a measurement, and longer than a score takes to reach the cache."""

CONNECTIONS = 16
"""Requests at once: enough for batches of full size, also of the server that computes half of the rows."""

REQUESTS = 100
"""Distinct requests whose scores are cached."""

TRACE = 100_000
"""Queries of the trace, which has as many requests: the k-th one is asked for in proportion to 1 / k."""

AT_ONCE = 5
"""Requests with new titles that are made at once: the client sends none meanwhile."""

SEEDS = itertools.count(1)
"""Of new titles: no measurement asks for those of another one, which are cached by then."""

HEAD = 1_000
"""The most frequent queries, whose titles are scored in advance."""


def measure(rounds: int, model: Path = DEFAULT, start: Start = headroom) -> Report:
    """Compare both servers. start: starts each."""
    report = Report(f"{rounds} rounds; {CONNECTIONS} connections, {TITLES} titles a request.")
    known = texts(TITLES, REQUESTS)
    with (
        tempfile.TemporaryDirectory() as scratch,
        _redis(scratch) as url,
        start(_config(scratch, "caching", score_cache=url), model) as caching,
        start(_config(scratch, "plain"), model) as plain,
    ):
        _send_all(caching, known)
        servers = {"caching": caching, "plain": plain}
        for name, share, minimum in (("all", 1.0, 20.0), ("half", 0.5, 1.8), ("none", 0.0, 0.98)):
            ratio = _times_as_fast(servers, known, share, rounds, by_title=True)
            report.rows.append(times_as_fast(f"{name} of the titles cached: speed", ratio, minimum))
        hits = hit_rate(seed=0)
        ratio = _times_as_fast(servers, known, hits, rounds, by_title=False)
        name = f"Zipf trace, its {HEAD:,} head queries cached: {hits:.1%} of {TRACE:,} requests hit; speed"
        report.rows.append(at_least(name, ratio.median, 1 / (1 - hits) * 0.8, more=ratio.range()))
    return report


@contextmanager
def _redis(directory: str) -> Iterator[str]:
    """Start a Redis or Valkey server on a socket in a directory; yield its URL. Raises FileNotFoundError."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise FileNotFoundError("redis-server is missing; run: apt-get install redis-server")
    path = Path(directory, "redis.sock")
    command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", directory]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            if process.poll() is not None:
                raise RuntimeError(f"{program} ended with {process.returncode}")
            time.sleep(0.05)
        yield f"unix://{path}?db=0"
    finally:
        process.terminate()
        process.wait()


def hit_rate(seed: int) -> float:
    """Return the share of a trace's requests whose query is one of the HEAD most frequent ones."""
    frequencies = 1 / np.arange(1, TRACE + 1)
    drawn = np.random.default_rng(seed).choice(TRACE, TRACE, p=frequencies / frequencies.sum())
    return float((drawn < HEAD).mean())


def _config(scratch: str, name: str, **args: str) -> Path:
    """Write the shipped config with these arguments, and with a queue that refuses nothing.

    A slow machine has more than a second of work in hand: refused, a client waits, and its waits count.
    """
    document = yaml.safe_load(CONFIG.read_text("utf-8"))
    document["applications"][0].setdefault("args", {}).update(args, max_queue_s=60)
    config = Path(scratch, f"{name}.yaml")
    config.write_text(yaml.safe_dump(document), "utf-8")
    return config


def _send_all(server: Server, requests: Sequence[Texts]) -> None:
    """Have requests scored once, and wait until their scores are cached."""
    with closing(Client(server.url, bodies(requests)).start()) as client:
        while client.answered < len(requests):
            client.check()
            time.sleep(0.05)
    time.sleep(SETTLE_S)


def _times_as_fast(
    servers: dict[str, Server], known: Sequence[Texts], share: float, rounds: int, *, by_title: bool
) -> Ratio:
    """Return how many times as fast the first server answers.

    share: the share of a request's titles, or of the requests, that the first server has cached.
    """

    def rate_of(server: Server) -> float:
        """Return the requests a second that a server answers."""
        mixed = mixed_requests(known, share, seed=next(SEEDS), by_title=by_title)
        with closing(Client(server.url, map(_body, mixed), CONNECTIONS).start()) as client:
            time.sleep(SETTLE_S)
            before = client.answered
            began = time.monotonic()
            time.sleep(SECONDS)
            answered = client.answered - before
            seconds = time.monotonic() - began
            client.check()
        return answered / seconds

    def side(name: str) -> Callable[[int], float]:
        return lambda _: rate_of(servers[name])

    rates = turns({name: side(name) for name in servers}, rounds)
    return Ratio.of(rates["caching"], rates["plain"])


def mixed_requests(known: Sequence[Texts], share: float, *, seed: int, by_title: bool) -> Iterator[Texts]:
    """Yield requests without end, of known titles and of new ones."""
    rng = np.random.default_rng(seed)
    seeds = itertools.count(seed * 1000)
    new = (one for part in seeds for one in texts(TITLES, AT_ONCE, new=True, seed=part))
    while True:
        query, titles = known[int(rng.integers(len(known)))]
        if by_title:
            count = round(share * TITLES)
            titles = titles[:count] if count == TITLES else [*titles[:count], *next(new)[1][count:]]
            yield query, titles
        else:
            yield (query, titles) if rng.random() < share else next(new)


def _body(request: Texts) -> bytes:
    return bodies([request])[0]
