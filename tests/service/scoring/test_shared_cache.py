"""The score cache's second level, with a real Redis: what one replica computed, another one need not."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import yaml
from typer.testing import CliRunner

from headroom import Classifier
from headroom.loadtest.server import free_port
from headroom.models.errors import ModelError
from headroom.service.cli.program import app
from headroom.service.cli.serve import DEFAULT_CONFIG
from headroom.service.config.file import ConfigFileError
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring import shared_cache
from headroom.service.scoring.shared_cache import CONNECTIONS, PREFIX, SharedCache, check_url
from tests.checkpoints import write_checkpoint, write_overflowing
from tests.redis_server import redis_server
from tests.service.in_process import CONFIG, QUERY, TITLES, Service, check_scores, pairs, read_config, serve

pytestmark = pytest.mark.more
COMPUTED = "headroom_batch_pairs_sum"


@dataclass
class Redis:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @cached_property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def stored_keys(self) -> list[bytes]:
        found: list[bytes] = self.client.keys("*")  # type: ignore[assignment]
        return found


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    port = free_port()
    with redis_server(tmp_path_factory.mktemp("redis"), port) as process:
        yield Redis(process, port)


@pytest.fixture
def server(one_server: Redis) -> Redis:
    one_server.client.flushall()
    return one_server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replicas wait for the server: on a busy machine it may not answer within five milliseconds."""
    monkeypatch.setattr(shared_cache, "READ_S", 5.0)


@pytest.fixture
async def frozen(server: Redis) -> AsyncIterator[Callable[[], None]]:
    """Return a function that stops the server's process as a network or a disk that hangs would."""
    yield lambda: os.kill(server.process.pid, signal.SIGSTOP)
    os.kill(server.process.pid, signal.SIGCONT)


async def scored(service: Service, **body: Any) -> tuple[str, list[dict[str, Any]]]:
    """Score, and return what `x-cache` says, and the results."""
    answer = await service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES} | body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cache"], answer.json()["results"]


async def stored(server: Redis, rows: int) -> None:
    """Wait until the server has so many scores."""
    async with asyncio.timeout(20):
        while len(server.stored_keys()) < rows:
            await asyncio.sleep(0.02)


async def test_what_one_replica_scored_another_one_knows(
    tiny_checkpoint: Path, clf: Classifier, server: Redis
) -> None:
    expected = clf.score(pairs())
    async with serve(tiny_checkpoint, score_cache=server.url) as one:
        assert (await scored(one))[0] == "miss"
        await stored(server, len(TITLES))
    assert all(key.startswith(PREFIX) for key in server.stored_keys()), "a key holds a text"
    async with serve(tiny_checkpoint, score_cache=server.url) as other:
        cache, results = await scored(other)
        assert (cache, other.metric(COMPUTED)) == ("hit", 0)
        check_scores(results, expected.score)
        np.testing.assert_allclose(
            [row["probabilities"] for row in results], expected.probabilities, atol=1e-5
        )
        assert (await scored(other, titles=[*TITLES, "new"]))[0] == "partial"
        assert other.metric(COMPUTED) == 1
        assert other.metric('headroom_shared_cache_total{result="hit"}') == 8


async def test_a_score_is_never_another_masks_models_or_formats(
    tiny_checkpoint: Path, tmp_path: Path, server: Redis
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=9)
    variants = [*CONFIG["variants"], {"name": "other", "checkpoint": str(other)}]
    asked: list[dict[str, Any]] = [
        *({"variant": name} for name in ("full", "masked", "cut", "other")),
        *({"head_mask": spec} for spec in ("2.3", "random:0.5@7")),
    ]
    async with serve(tiny_checkpoint, CONFIG | {"variants": variants}) as plain:
        expected = [(await plain.post("/v1/score", query=QUERY, titles=TITLES, **body)) for body in asked]
    for _ in range(2):
        async with serve(tiny_checkpoint, CONFIG | {"variants": variants}, score_cache=server.url) as service:
            for body, right in zip(asked, expected, strict=True):
                _, results = await scored(service, **body)
                check_scores(results, np.array([row["score"] for row in right["results"]]))
    before = len(server.stored_keys())
    async with serve(tiny_checkpoint, CONFIG, score_cache=server.url, deterministic=True) as exact:
        assert (await scored(exact))[0] == "miss"
    await stored(server, before + len(TITLES))


async def test_a_value_that_was_altered_is_computed(
    tiny_checkpoint: Path, clf: Classifier, server: Redis
) -> None:
    async with serve(tiny_checkpoint, score_cache=server.url) as service:
        await scored(service)
        await stored(server, len(TITLES))
        first, second, *_ = server.stored_keys()
        other = server.client.get(first)
        server.client.set(second, other)  # type: ignore[arg-type]  # another row's scores
        server.client.set(first, b"short")
        cache, results = await scored(service)
    assert cache == "partial"
    check_scores(results, clf.score(pairs()).score)


async def test_a_server_that_hangs_costs_a_request_milliseconds(
    tiny_checkpoint: Path,
    clf: Classifier,
    server: Redis,
    frozen: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve(tiny_checkpoint, score_cache=server.url) as service:
        await scored(service)
        await stored(server, len(TITLES))
        frozen()
        monkeypatch.setattr(shared_cache, "READ_S", 0.005)
        monkeypatch.setattr(shared_cache, "ANSWER_S", 60.0)
        waits = []
        for number in range(5):
            began = time.monotonic()
            missing = service.metric('headroom_shared_cache_failures_total{reason="timeout"}')
            cache, results = await scored(service)
            waits.append(time.monotonic() - began)
            assert cache == "miss"
            check_scores(results, clf.score(pairs()).score)
            assert service.metric('headroom_shared_cache_failures_total{reason="timeout"}') > missing, number
        # Not the client's own timeout of seconds. The least: other programs may hold up one of them.
        assert min(waits) < 0.5


@asynccontextmanager
async def far_away(port: int, delay_s: float) -> AsyncIterator[int]:
    """Yield the port of a proxy whose server's answers take so long."""

    async def forward(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float = 0.0
    ) -> None:
        while data := await reader.read(65_536):
            await asyncio.sleep(delay_s)
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, server[1]), forward(server[0], writer, delay_s))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as proxy:
        yield proxy.sockets[0].getsockname()[1]


async def test_a_server_that_answers_in_time_is_used_although_connecting_takes_longer(
    tiny_checkpoint: Path, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tiny_checkpoint, score_cache=server.url) as service:
        await scored(service)
        await stored(server, len(TITLES))
    monkeypatch.setattr(shared_cache, "READ_S", 0.6)
    monkeypatch.setattr(shared_cache, "ANSWER_S", 60.0)
    async with (
        far_away(server.port, 0.4) as port,  # connecting takes an answer or more of its own
        serve(tiny_checkpoint, score_cache=f"redis://127.0.0.1:{port}/0") as service,
    ):
        assert (await scored(service))[0] == "miss"  # it is still connecting
        async with asyncio.timeout(20):
            while (await scored(service))[0] != "hit":
                pass
        assert (await scored(service))[0] == "hit"


async def test_more_reads_at_once_than_connections_are_all_answered(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_cache, "ANSWER_S", 60.0)
    metrics = Metrics()
    cache = SharedCache(server.url, metrics)
    cache.keep({b"key": b"logits"})
    await cache.close()
    cache = SharedCache(server.url, metrics)
    found = await asyncio.gather(*(cache.read([b"key"]) for _ in range(2 * CONNECTIONS)))
    await cache.close()
    assert found == [[b"logits"]] * 2 * CONNECTIONS


async def test_a_server_that_is_away_is_taken_up_again(
    tiny_checkpoint: Path, tmp_path: Path, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_cache, "PAUSE_S", 0.05)
    port = free_port()
    async with serve(tiny_checkpoint, score_cache=f"redis://127.0.0.1:{port}/0") as service:
        with redis_server(tmp_path, port):
            await scored(service)
        _, results = await scored(service)
        check_scores(results, clf.score(pairs()).score)
        assert (await service.http.get("/health/ready")).status_code == 200
        assert service.metric('headroom_shared_cache_failures_total{reason="error"}') >= 1
        with redis_server(tmp_path, port):
            async with asyncio.timeout(20):
                while (await scored(service))[0] != "hit":
                    await asyncio.sleep(0.05)


async def test_both_levels_together_ask_the_server_once(tiny_checkpoint: Path, server: Redis) -> None:
    async with serve(tiny_checkpoint, score_cache=server.url) as service:
        await scored(service)
        await stored(server, len(TITLES))
    async with serve(tiny_checkpoint, score_cache=server.url, score_cache_size=100) as service:
        assert (await scored(service))[0] == "hit"
        assert service.metric('headroom_shared_cache_total{result="hit"}') == 4
        server.client.flushall()
        assert (await scored(service))[0] == "hit"
        assert service.metric('headroom_shared_cache_total{result="hit"}') == 4
        assert service.metric(COMPUTED) == 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_file_fills_the_cache_for_the_service(
    tiny_checkpoint: Path, tmp_path: Path, clf: Classifier, server: Redis, deterministic: bool
) -> None:
    file = tmp_path / "head.csv"
    file.write_text("query,title\n" + "".join(f'{QUERY},"{title}"\n' for title in TITLES), "utf-8")
    document = yaml.safe_load(DEFAULT_CONFIG.read_text("utf-8"))
    document["applications"][0]["args"] = {"deterministic": deterministic}
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump(document), "utf-8")
    options = [
        "--model",
        str(tiny_checkpoint),
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--config",
        str(config),
    ]
    command = ["score", "--input", str(file), "--cache", server.url, *options]
    first = CliRunner().invoke(app, command, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "4 pairs are cached; 4 rows were computed" in first.stdout
    second = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "0 rows were computed" in second.stdout
    assert "4 were known" in second.stdout

    async def ask() -> tuple[str, list[dict[str, Any]]]:
        async with serve(tiny_checkpoint, score_cache=server.url, deterministic=deterministic) as service:
            return await scored(service)

    cache, results = asyncio.run(ask())
    assert cache == "hit"
    check_scores(results, clf.score(pairs()).score)


def test_rows_that_cannot_be_scored_do_not_count_as_cached(tmp_path: Path, server: Redis) -> None:
    model = write_overflowing(tmp_path / "model", "usb")
    file = tmp_path / "head.jsonl"
    rows = [{"query": QUERY, "title": "usb lamp"}, {"query": QUERY, "title": "red lamp"}]
    file.write_text("\n".join([*map(json.dumps, rows), "{"]), "utf-8")
    command = ["score", "--input", str(file), "--cache", server.url, "--model", str(model)]
    done = CliRunner().invoke(app, [*command, "--device", "cpu"], catch_exceptions=False)
    assert "1 pairs are cached; 1 rows were computed" in done.stdout
    assert "2 rows cannot be scored; the first: line 1: the model gives no finite score" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score_cache": "http://127.0.0.1"}, "score_cache: must begin with redis://, rediss:// or unix://"),
        ({"score_cache": "redis://:secret@127.0.0.1"}, "HEADROOM_SCORE_CACHE"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFileError, match=message) as refused:
        read_config({}, **arguments)
    assert "secret" not in str(refused.value)


def test_a_wrong_address_is_refused_under_the_name_of_its_option() -> None:
    with pytest.raises(ModelError, match=r"^--cache: .*redis://"):
        check_url("http://127.0.0.1", "--cache")
