"""A client process and its pipe."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time

from loadtest import worker
from loadtest.alarm import clock
from loadtest.plan import make_plan
from tests.loadtest.servers import reference


def test_a_result_larger_than_the_pipe_waits_for_its_reader() -> None:
    """A run of forty minutes lost its result, because the pipe did not block."""
    context = multiprocessing.get_context("spawn")
    with reference("1ms") as server:
        evenly = {"arrivals": "constant", "warmup": 0, "traffic": [{"titles": 1}]}
        plan = make_plan({"url": server.url, "rate": 100, "duration": 2, **evenly})
        ours, theirs = context.Pipe()
        with socket.socket(fileno=os.dup(theirs.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system makes it some 4 KiB
        process = context.Process(target=worker.main, args=(worker.Job(plan, "127.0.0.1", 0), theirs))
        process.start()
        theirs.close()
        try:
            assert ours.recv() == ("ready", None)
            ours.send(("go", clock() + 0.1))
            time.sleep(3)
            while (message := ours.recv())[0] != "result":
                pass
            recorder = message[1].recorder
            assert recorder.ok == recorder.scheduled == 200
            process.join(10)
            assert process.exitcode == 0
        finally:
            process.kill()
