"""The access log, and what no log may hold, on the whole way through a real `headroom serve`."""

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
from tests.service.running import Server, still_there

pytestmark = [pytest.mark.slow, pytest.mark.more]

KEY, WRONG_KEY = "Kq7SECRETKEYx9", "Kq7WRONGKEYx9"
SECRETS = (KEY, WRONG_KEY, "secretquery", "secrettitle", "secretunit", "secretparam", "secretcookie")
POISON = "keyboard"
"""A word whose embedding overflows: a request with it fails with 500."""
TRACE = f"{3:032x}"


@dataclass(frozen=True)
class Seen:
    """What the run left. files: the text of every file of the run's directory; output: standard output."""

    files: dict[Path, bytes]
    stderr: str
    output: list[str]


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
    """Kill the replica while it works on a long request, and wait until Serve has noticed."""
    replica = server.replica()
    long = asyncio.create_task(
        send_raw(server.port, post("crash", titles=[f"secrettitle {number}" for number in range(1000)]))
    )
    await asyncio.sleep(0.2)  # in any order: the test only looks for what the crash leaves
    replica.kill()
    assert (await long).status in (0, 200, 503)
    assert still_there([replica]) == []


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("followed")
    keys = directory / "keys"
    keys.write_text(f"{KEY}\n")
    environment = {"HEADROOM_API_KEYS_FILE": str(keys)}
    model = write_poisoned(directory / "model")
    server = Server(directory, model, environment=environment, access_log="json", log_format="json")
    try:
        assert server.wait_until_ready(), server.stderr
        asyncio.run(traffic(server))
        asyncio.run(crash(server))
        (run,) = server.run_directories()
        found = [Path(folder, name) for folder, _, names in os.walk(run, followlinks=True) for name in names]
        files = {path: contents(path) for path in found if path.is_file()}
        assert server.stop() == 0, server.stderr
        assert server.process.stdout is not None
        output = server.process.stdout.read().splitlines()
        yield Seen(files, server.stderr, output)
    finally:
        server.kill()


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
