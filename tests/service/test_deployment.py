"""The whole way on a real Ray Serve, through the front that `headroom serve` starts."""

import asyncio
import json
import math
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.service.client import Answer, metric, request, score, send_raw
from tests.service.running import LIVE, Server


@pytest.mark.more
@pytest.mark.slow
async def test_ten_thousand_idle_connections_do_not_stop_the_service(server: Server) -> None:
    alone = sorted([(await send_raw(server.port, score(1))).seconds for _ in range(20)])[10]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(0, count, 200):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", server.port) for _ in range(200))
            )
            writers += [writer for _, writer in opened]
        answers = [await send_raw(server.port, score(1)) for _ in range(20)]
        assert [answer.status for answer in answers] == [200] * 20
        assert sorted(answer.seconds for answer in answers)[10] < max(1, 20 * alone)
    finally:
        for writer in writers:
            writer.transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_client_that_hangs_up_leaves_no_work_behind(server: Server) -> None:
    shed = 'headroom_shed_total{reason="disconnect"} '
    before = await metric(server.port, shed)
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(score(1000))
        await writer.drain()
        writer.transport.abort()
    deadline = time.monotonic() + 10
    counted, queued = 0.0, math.inf
    while not (counted > before and queued == 0) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        counted, queued = await metric(server.port, shed), await metric(server.port, "headroom_queue_tokens ")
    assert counted > before, "no client that hung up was counted"
    assert queued == 0, "the hung-up clients' work was still queued after 10 s"


@pytest.mark.more
@pytest.mark.slow
async def test_haproxy_that_hangs_is_killed_and_back_within_ten_seconds(server: Server) -> None:
    (haproxy,) = [process for process in server.family() if process.name() == "haproxy"]
    haproxy.suspend()
    began = time.monotonic()
    assert (await send_raw(server.port, request("GET", "/health/ready"), timeout_s=60)).status in (0, 200)
    while (await send_raw(server.port, request("GET", "/health/ready"))).status != 200:
        await asyncio.sleep(0.02)
    assert time.monotonic() - began < 10
    assert server.wait_for_line("does not answer") == "headroom: HAProxy does not answer; killing it"


MIXED = """
{rate: 15, duration: 3s, warmup: 0, max_lag: 10s, timeout: 20s, traffic: [
  {name: score, weight: 4, titles: 1-10, masks: {none: 1, "0.*": 1}, variants: {full: 1, masked: 1}},
  {name: compare, endpoint: compare, titles: 3, masks: {none: 1, "0.*": 1}},
  {name: attention, endpoint: attention, titles: 1}]}
"""


@pytest.mark.more
def test_the_load_tester_and_the_service_count_the_same_requests(server: Server, tmp_path: Path) -> None:
    scenario = tmp_path / "mixed.yaml"
    scenario.write_text(MIXED)
    command = [sys.executable, "-m", "loadtest", "run", server.url, "--scenario", scenario, "--json"]
    run = subprocess.run([*command, "--out", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["requests"]["errors"] == {}
    counters = report["server_metrics"]["counters"]
    for endpoint in ("score", "compare", "attention"):
        counted = counters[f'headroom_requests_total{{route="/v1/{endpoint}",status="200"}}']
        assert counted == report["by"]["endpoint"][endpoint]["ok"] > 0
    assert {"full", "masked"} <= report["by"]["variant"].keys()
    assert report["by"]["mask"].keys() == {"none", "0.*"}
    assert report["stages_ms"]["total"]["p50"] < report["latency_ms"]["p99"]


UNPARSED = {
    b"hello there": 400,
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b": 400,
    b"GET / HTTP/1.0\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc": 413,
    b"GET / HTTP/1.1\r\nhost: a\r\nlarge: " + b"x" * 20_000: 400,
}
"""What is no HTTP request: HAProxy's parser answers it with a page that is part of its program."""

UNUSUAL = {
    b"GET / HTTP/1.1\r\nhost:": 400,
    b"BREW / HTTP/1.1\r\nhost: a": 405,
    b"TRACE / HTTP/1.1\r\nhost: localhost": 405,
    b"CONNECT a:80 HTTP/1.1\r\nhost: a": 405,
    b"GET /nowhere HTTP/1.0": 404,
    b"GET /-/nowhere HTTP/1.1\r\nhost: localhost": 404,
}
"""Requests that are refused by HAProxy's rules, the replica's parser, Serve or our application."""


async def test_what_is_no_request_of_ours_is_refused_in_our_error_shape_if_it_is_http(server: Server) -> None:
    for line, status in (UNPARSED | UNUSUAL).items():
        answer = await send_raw(server.port, line + b"\r\n\r\n")
        assert answer.status == status, (line[:70], answer)
        if line in UNUSUAL:
            assert answer.headers["content-type"] == "application/json", line[:70]
            assert set(answer.json["error"]) == {"type", "message", "param"}
            assert ("allow" in answer.headers) == (status == 405), line[:70]


def restarts_told(server: Server) -> int:
    """Return how often the operator read that HAProxy starts again: also if it died before it had started."""
    lines = ("headroom: HAProxy ended; starting it again", "headroom: HAProxy did not start; trying again")
    return sum(server.stderr.count(line) for line in lines)


async def test_haproxy_that_is_killed_is_back_within_two_seconds_and_the_operator_told(
    server: Server,
) -> None:
    (haproxy,) = [process for process in server.family() if process.name() == "haproxy"]
    began = time.monotonic()
    subprocess.run([haproxy.exe(), "-v"], check=True, stdout=subprocess.DEVNULL)
    one_start = time.monotonic() - began  # 0.01 s; more while the machine is busy with something else
    told = restarts_told(server)
    haproxy.kill()
    killed = time.monotonic()
    while (await send_raw(server.port, request("GET", "/health/ready"))).status != 200:
        assert time.monotonic() < killed + 2 + 20 * one_start
        await asyncio.sleep(0.02)
    while restarts_told(server) == told:
        await asyncio.sleep(0.02)  # pytest's timeout is the limit


async def test_an_edit_of_the_config_applies_without_a_restart(server: Server) -> None:
    replica = server.replica()
    server.write_config({**LIVE, "variants": [*LIVE["variants"], {"name": "new", "head_mask": "0.0"}]})
    meanwhile = []
    answer = await send_raw(server.port, score(1, variant="new"))
    while answer.status != 200:  # pytest's timeout is the limit
        meanwhile.append(await send_raw(server.port, score(1)))
        answer = await send_raw(server.port, score(1, variant="new"))
    assert answer.json["head_mask"]["spec"] == "0.0"
    started = time.monotonic()
    while time.monotonic() < started + 1:  # Serve reports the replica as updating for a moment more
        meanwhile.append(await send_raw(server.port, score(1)))
    assert {answer.status for answer in meanwhile} == {200}
    assert server.replica() == replica


@pytest.mark.more
async def test_service_survives_the_kill_of_its_only_replica(server: Server) -> None:
    """Under load: 503 with Retry-After or a dropped connection, nobody waits long, back within 15 s."""
    answers: list[tuple[float, Answer]] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            answer = await send_raw(server.port, score(50), timeout_s=20)
            answers.append((time.monotonic(), answer))
            if answer.status != 200:
                await asyncio.sleep(0.05)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await asyncio.sleep(1)
    replica = server.replica()
    replica.kill()
    killed = time.monotonic()
    while not any(at > killed + 0.5 and answer.status == 200 for at, answer in answers):
        assert time.monotonic() < killed + 60, Counter(answer.status for _, answer in answers)
        await asyncio.sleep(0.1)
    back = time.monotonic() - killed
    stop.set()
    await asyncio.gather(*clients)
    after = [answer for at, answer in answers if at > killed]
    assert {answer.status for answer in after} <= {0, 200, 503}
    for answer in after:
        if answer.status == 503:
            assert answer.json["error"]["message"]
            assert int(answer.headers["retry-after"]) > 0
    assert max(answer.seconds for answer in after) < 10, "someone waited past the request timeout"
    assert back < max(15, server.start_s), "a new replica took longer than the whole service"
    assert server.replica() != replica
    line = server.wait_for_line("crashed")
    assert line.startswith("headroom: Ray Serve: ")
    assert "Another one is started" in line
    metrics = (await send_raw(server.port, request("GET", "/metrics"))).body.decode()
    assert "headroom_ready 1.0" in metrics, "the dead replica's gauges are still counted"
