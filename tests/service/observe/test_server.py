"""Logs and traces of a real `headroom serve`, and what none of them may hold."""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import VOCABULARY, random_model, write_vocabulary
from tests.service.client import request, send_raw
from tests.service.observe.test_traces import Collector
from tests.service.running import Server, still_there

pytestmark = [pytest.mark.slow, pytest.mark.more]

KEY, WRONG_KEY = "Kq7SECRETKEYx9", "Kq7WRONGKEYx9"
SECRETS = (KEY, WRONG_KEY, "secretquery", "secrettitle", "secretunit", "secretparam", "secretcookie")
POISON = "keyboard"
"""A word whose embedding overflows: a request with it fails with 500."""
TRACE = f"{3:032x}"


@dataclass(frozen=True)
class Seen:
    """What the run left.

    files: the text of every file of the run's directory. output: standard output. collector: got its spans.
    sent_early: whether spans came before the stop.
    """

    files: dict[Path, bytes]
    stderr: str
    output: list[str]
    collector: Collector
    sent_early: bool


def write_poisoned(directory: Path) -> Path:
    model = random_model()
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight[VOCABULARY.index(POISON)]
        embedding.fill_(3.3e38)  # finite, but no sum of two of them is
        embedding[::4] = -3.3e38
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return directory


def post(name: str, path: str = "/v1/score", *, key: str = KEY, trace: str = "", **body: Any) -> bytes:
    texts = {"query": "secretquery bracket", "titles": ["secrettitle one", "two"]}
    headers = f"x-request-id: {name}\r\nauthorization: Bearer {key}\r\ncookie: a=secretcookie\r\n{trace}"
    return request("POST", path, json.dumps(texts | body).encode(), headers)


def contents(path: Path) -> bytes:
    """Return what a file holds; nothing if it was just removed."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


async def traffic(server: Server) -> None:
    """Send one request of each kind: what succeeds, is refused, fails, and is cut off by a crash."""
    wrong_json = request(
        "POST", "/v1/score", b'{"query": "secretquery", "secrettitle', f"authorization: Bearer {KEY}\r\n"
    )
    for data in (
        post("scored", unit="secretunit"),
        post("compare", "/v1/compare", masks=["none"]),
        post("refused", head_mask="secretquery"),
        post("unknown", secretunit="secretquery"),
        wrong_json,
        post("unauthorized", key=WRONG_KEY),
        post(
            "failed",
            trace=f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n",
            titles=[f"secrettitle {POISON}"],
        ),
        request("GET", "/no%0Awhere%1b[31m?secretparam=1", headers="x-request-id: odd_path\r\n"),
    ):
        await send_raw(server.port, data)


async def crash(server: Server) -> None:
    """Kill a replica while both work on long requests, and wait until another one serves in its place."""
    replica = server.replicas()[0]
    titles = [f"secrettitle {number}" for number in range(1000)]
    long = [
        asyncio.create_task(send_raw(server.port, post(f"crash-{number}", titles=titles)))
        for number in range(2)
    ]
    await asyncio.sleep(0.2)  # in any order: the test only looks for what the crash leaves
    replica.kill()
    for answer in await asyncio.gather(*long):
        assert answer.status in (0, 200, 503, 504)  # 504: on a busy machine
    assert still_there([replica]) == []
    while len(await server.own_ports()) != 2:  # pytest's timeout is the limit
        await asyncio.sleep(0.1)


async def traced(server: Server) -> None:
    """Send each replica requests whose ids begin with `traced`."""
    for port in await server.own_ports():
        for number in range(5):
            assert (await send_raw(port, post(f"traced-{port}-{number}"))).status == 200


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("followed")
    keys = directory / "keys"
    keys.write_text(f"{KEY}\n")
    collector = Collector()
    environment = {
        "HEADROOM_API_KEYS_FILE": str(keys),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",  # nothing is sent until the stop
        "OTEL_SERVICE_NAME": "shop-reranker",
    }
    model = write_poisoned(directory / "model")
    logs = {"access_log": "json", "log_format": "json"}
    server = Server(directory, model, replicas=2, environment=environment, **logs)
    try:
        assert server.wait_until_ready(), server.stderr
        asyncio.run(traffic(server))
        asyncio.run(crash(server))
        asyncio.run(traced(server))
        (run,) = server.run_directories()
        found = [Path(folder, name) for folder, _, names in os.walk(run, followlinks=True) for name in names]
        files = {path: contents(path) for path in found if path.is_file()}
        sent_early = bool(collector.received)
        assert server.stop() == 0, server.stderr
        assert server.process.stdout is not None
        output = server.process.stdout.read().splitlines()
        yield Seen(files, server.stderr, output, collector, sent_early)
    finally:
        server.kill()
        collector.close()


def test_what_the_service_reports_is_json_and_an_error_names_its_request(seen: Seen) -> None:
    reported = [json.loads(line) for line in seen.stderr.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in reported)
    assert "loading the model" in [line["message"] for line in reported]
    (failed,) = [line for line in reported if line["message"] == "request failed failed"]
    assert (failed["level"], failed["request_id"]) == ("ERROR", "failed")
    assert failed["trace_id"] == TRACE
    assert len(failed["config_version"]) == 12
    assert "Traceback" in failed["traceback"]


def test_no_log_and_no_file_of_the_run_holds_a_text_a_key_or_a_header(seen: Seen) -> None:
    assert "request failed failed" in seen.stderr, "the 500 left no trace"
    assert len(seen.files) > 20
    for secret in SECRETS:
        assert secret not in seen.stderr
        assert [str(path) for path, text in seen.files.items() if secret.encode() in text] == []
        assert not [line for line in seen.output if secret in line]


def test_replicas_send_their_last_spans_before_they_stop_and_are_told_apart(seen: Seen) -> None:
    assert not seen.sent_early
    traced = {name for name in seen.collector.spans() if name.startswith("traced-")}
    assert len(traced) == 10
    assert {resource["service.name"] for resource in seen.collector.resources()} == {"shop-reranker"}
    assert len({resource["service.instance.id"] for resource in seen.collector.resources()}) == 2
    spans = b"".join(request.SerializeToString() for request in seen.collector.received)
    assert not [secret for secret in SECRETS if secret.encode() in spans]
