"""A client process and its pipe, and a port for a server that a load test starts."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time

import pytest

from headroom.loadtest import arrivals
from headroom.loadtest.alarm import clock
from headroom.loadtest.judging import invalid_because
from headroom.loadtest.plan import make_plan
from headroom.loadtest.running import client_process, find
from headroom.loadtest.server import free_port
from tests.loadtest.measuring import measure
from tests.loadtest.servers import reference

pytestmark = pytest.mark.more


def test_requests_that_the_client_had_no_time_for_count_as_unsent() -> None:
    with reference() as server:
        outcome = measure(server.url, rate=1e6, duration=0.2, warmup=0, timeout=0.1, connections=4)
    recorder = outcome.recorder
    assert recorder.scheduled == arrivals.count(outcome.plan) == 200_000
    assert recorder.scheduled == recorder.ok + sum(recorder.errors.values())
    assert recorder.errors["not_sent"] > 0
    assert any("of 200,000 scheduled requests" in reason for reason in invalid_because(outcome))


def test_a_result_larger_than_the_pipe_waits_for_its_reader() -> None:
    context = multiprocessing.get_context("spawn")
    with reference("1ms") as server:
        evenly = {"arrivals": "constant", "warmup": 0, "traffic": [{"titles": 1}]}
        plan = make_plan({"url": server.url, "rate": 100, "duration": 2, **evenly})
        ours, theirs = context.Pipe()
        with socket.socket(fileno=os.dup(theirs.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system makes it some 4 KiB
        process = context.Process(target=client_process, args=(plan, find(server.url), theirs))
        process.start()
        theirs.close()
        try:
            assert ours.recv() == ("ready", None)
            ours.send(("go", clock() + 0.1))
            time.sleep(3)
            while (message := ours.recv())[0] != "result":
                pass
            recorder, _ = message[1]
            assert recorder.ok == recorder.scheduled == 200
            process.join(10)
            assert process.exitcode == 0
        finally:
            process.kill()


def test_a_free_port_is_none_that_the_system_or_serve_gives_out() -> None:
    """Nor does another call get it: of two servers that start at the same time, one would not start."""
    ports = [free_port() for _ in range(50)]
    assert all(20_000 <= port < 30_000 for port in ports)
    assert len(set(ports)) == 50
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))
    another = "from headroom.loadtest.server import free_port; print(*(free_port() for _ in range(500)))"
    theirs = subprocess.run(
        [sys.executable, "-c", another], capture_output=True, text=True, check=True
    ).stdout
    assert set(ports).isdisjoint(map(int, theirs.split()))
