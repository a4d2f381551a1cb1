"""Whatever a server does, each request is counted under its name, and the run ends on time."""

import contextlib
import socket
import threading
import time
from collections import Counter

import pytest

from headroom.loadtest.alarm import clock
from headroom.loadtest.judging import invalid_because
from headroom.loadtest.running import Outcome
from tests.loadtest import servers
from tests.loadtest.measuring import measure
from tests.loadtest.servers import faulty, reference

pytestmark = pytest.mark.more

SLACK_S = 10.0
"""For collecting what the client processes recorded on a busy machine."""
TIMEOUT_S = 4.0
"""Longer than a busy machine stands still: only a server that does not answer is to reach it."""
HALF_TIME_S = 2.0


FAILURES = [
    (servers.hang, "timeout"),
    (servers.reset, "reset"),
    (servers.close, "closed"),
    (servers.garbage, "garbage"),
    (servers.half, "half_answer"),
    (servers.half_head, "half_answer"),
    (servers.says(b"200 OK", b'{"results": [{"sco'), "bad_answer"),
    (servers.says(b"200 OK", b'{"results": []}'), "bad_answer"),
    (servers.says(b"503 Service Unavailable", b"{}"), "http_503"),
    (servers.says(b"429 Too Many Requests", b"[]"), "http_429"),
]


def test_each_failure_is_counted_under_its_own_name():
    turns = [behaviour for failure, _ in FAILURES for behaviour in (servers.answer, failure)]
    with faulty(*turns) as url:
        origins: list[float] = []
        outcome = measure(url, rate=50, duration=2, warmup=0, timeout=TIMEOUT_S, began=origins.append)
        assert clock() - origins[0] < 2 + TIMEOUT_S + SLACK_S
    recorder = outcome.recorder
    assert recorder.scheduled == recorder.sent == 100
    assert recorder.ok == len(recorder.error_latency) == 50
    expected = Counter(kind for _, kind in FAILURES)
    assert recorder.errors == {kind: 5 * count for kind, count in expected.items()}


def test_a_server_that_dies_mid_run_leaves_resets_and_refusals():
    """A refused connection takes no room from the next ones: four are enough."""
    with reference("20ms") as server:
        outcome = _at_half_time(server.kill, server.url, connections=4)
        errors = outcome.recorder.errors
        assert errors["refused"] > 20
        assert set(errors) <= {"refused", "reset", "closed"}
        assert outcome.recorder.ok > 20
        assert invalid_because(outcome) == []


def _at_half_time(happens, url, **plan) -> Outcome:
    origins: list[float] = []

    def began(origin: float) -> None:
        origins.append(origin)
        threading.Timer(max(0.0, origin + HALF_TIME_S - clock()), happens).start()

    times = {"duration": 2 * HALF_TIME_S, "warmup": 0, "timeout": TIMEOUT_S, "max_lag": 5}
    outcome = measure(url, rate=40, began=began, **times, **plan)
    assert clock() - origins[0] < 2 * HALF_TIME_S + TIMEOUT_S + SLACK_S
    recorder = outcome.recorder
    assert recorder.scheduled == recorder.ok + sum(recorder.errors.values()) == 80 * HALF_TIME_S
    return outcome


def test_waiting_for_a_free_connection_counts_as_latency():
    with reference("100ms") as server:
        outcome = measure(server.url, rate=20, duration=2, warmup=0, connections=1, timeout=10)
        recorder = outcome.recorder
        assert recorder.ok == 40
        # Ten answers a second from one connection, twenty asked for: the last waits for the 20 before it.
        assert recorder.latency().max_ms() > 1800
        assert recorder.service.percentile_ms(50) < 300
        assert recorder.connection_wait.max_ms() > 1600


def test_requests_that_found_no_connection_in_time_are_named_and_not_called_sent(tmp_path):
    trace = tmp_path / "at_once"
    trace.write_text("0\n" * 20)
    with faulty(servers.hang) as url:
        outcome = measure(url, arrivals="trace", trace=trace, warmup=0, connections=2, timeout=TIMEOUT_S)
        recorder = outcome.recorder
        assert recorder.errors == {"timeout": 2, "connection_wait_timeout": 18}
        assert recorder.sent == 2
        assert any("more --connections" in reason for reason in invalid_because(outcome))


def test_connections_that_the_server_never_accepts_are_not_the_clients():
    """It accepts two at a time, and those behind them wait in the kernel: more of them would not help."""
    places = threading.Semaphore(2)

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(65536):
                time.sleep(0.4)
                connection.sendall(servers.WHOLE)
        places.release()

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while places.acquire():
                threading.Thread(target=answer, args=(listener.accept()[0],)).start()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        accepting = threading.Thread(target=accept, args=(listener,))
        accepting.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        outcome = measure(url, rate=100, duration=3, warmup=0, timeout=TIMEOUT_S, connections=8)
        listener.shutdown(socket.SHUT_RDWR)
    places.release()
    accepting.join()
    recorder = outcome.recorder
    assert recorder.ok > 10
    assert recorder.errors["connect_timeout"] > 100
    assert [reason for reason in invalid_because(outcome) if "send lag" not in reason] == []  # a busy machine


def test_answers_without_a_length_chunked_and_interim_ones_and_closing_servers_are_understood():
    kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

    def until_close(connection):  # a media type's letters may be of either case (RFC 9110, 8.3.1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON;v=1\r\n\r\n" + servers.BODY)
        raise ConnectionError

    def chunked(connection):
        parts = (servers.BODY[:10], servers.BODY[10:], b"")
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        early = b"HTTP/1.1 103 Early Hints\r\n\r\n"
        connection.sendall(early + kind + b"transfer-encoding: chunked\r\n\r\n" + chunks)

    goodbye = servers.says(b"200 OK", servers.BODY, b"connection: close\r\n")
    with faulty(chunked, servers.answer, until_close, goodbye) as url:
        outcome = measure(url, rate=30, duration=1, warmup=0, connections=2)
        assert outcome.recorder.ok == 30


def test_what_an_answer_says_of_its_order_is_read_from_its_header():
    turns = [servers.says(b"200 OK", servers.BODY, more) for more in (b"X-Reranked: false\r\n", b"")]
    turns.append(servers.says(b"200 OK", servers.BODY, b"x-reranked: true\r\n"))
    with faulty(*turns) as url:
        outcome = measure(url, rate=30, duration=1, warmup=0, connections=2)
    recorder = outcome.recorder
    assert (recorder.ok, recorder.unreranked) == (30, 10)
