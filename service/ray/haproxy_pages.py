"""Writes HAProxy's own error answers in our shape, from the error tree, before `headroom serve` starts it.

A page is the same for all paths, so it also holds what the clients of the rerank routes read.

On a cluster that `headroom serve` does not start, run `python -m service.ray.haproxy_pages DIRECTORY`
on each node or while its image is built, and set RAY_SERVE_HAPROXY_BINARY_PATH to DIRECTORY/launch-haproxy.
"""

from __future__ import annotations

import http
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from service.api.error_shapes import rerank
from service.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ErrorResponse,
    Forbidden,
    InternalError,
    InvalidHTTP,
    MethodNotAllowed,
    NotImplementedHTTP,
    ReplicaLost,
    ServiceError,
    Unavailable,
    to_response,
)
from service.ray import haproxy
from service.ray.haproxy import ConfigurationError, bundled_program

RETRY_AFTER_SECONDS = 2.0

_PAGES: Mapping[int, ServiceError] = {
    400: InvalidHTTP(),
    403: Forbidden("This request is not allowed."),
    405: MethodNotAllowed(),
    413: BodyTooLarge(),
    500: InternalError(),
    501: NotImplementedHTTP(),
    502: ReplicaLost(RETRY_AFTER_SECONDS),
    503: Unavailable(RETRY_AFTER_SECONDS),
    504: DeadlineExceeded(),
}
"""Our error in the place of each status that HAProxy would send."""

_SILENT = (408,)
"""Statuses of connections that never became a request: they are closed without an answer."""

_UNPARSED: Mapping[int, ServiceError] = {status: _PAGES[status] for status in (400, 413, 501)} | {
    422: InvalidHTTP()
}
"""Our error in the place of each answer of HAProxy 2.8 to what it cannot parse. An error file does not change
these answers; only an empty one silences them."""


def write_launcher(directory: Path) -> Path:
    """Write the program that Serve starts as HAProxy, and all that it needs; return its path.

    Every user may run it, because a container's user does not own its image.
    """
    directory.mkdir(exist_ok=True)
    write_pages(directory / "errors")
    variables = {
        haproxy.PAGES: str(directory / "errors"),
        haproxy.PROGRAM: str(write_program(directory / "haproxy")),
    }
    set_all = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    command = shlex.join([sys.executable, "-I", haproxy.__file__])
    launcher = directory / "launch-haproxy"
    launcher.write_text(f'#!/bin/sh\n{set_all} exec {command} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def write_pages(directory: Path) -> None:
    """Write HAProxy's error files into a new directory."""
    directory.mkdir()
    for name, content in error_files():
        (directory / name).write_bytes(content)


def error_files() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of HAProxy's error files: whole HTTP answers."""
    for status, error in _PAGES.items():
        page = rerank(error, to_response(error))
        more = {"allow": "GET, HEAD, POST"} if error.status == MethodNotAllowed.status else {}
        yield f"{status}.http", _page(page, {"cache-control": "no-store", **more})
    for status in _SILENT:
        yield f"{status}.http", b""


def with_our_page(program: bytes) -> bytes:
    """Return HAProxy's program with our errors in the place of its HTML for what it cannot parse.

    Raises:
        ConfigurationError: the program does not hold one of its pages exactly once, or ours is longer.
    """
    for status, error in _UNPARSED.items():
        places = list(re.finditer(rb"HTTP/1\.1 %d [^\0]*</html>\n\0" % status, program))
        page = _page(to_response(error)) + b"\0"
        if len(places) != 1 or len(page) > len(places[0][0]):
            raise ConfigurationError(f"HAProxy's own page for status {status} is not where expected")
        start, end = places[0].span()
        program = program[:start] + page.ljust(end - start, b"\0") + program[end:]
    return program


def write_program(directory: Path) -> Path:
    """Write HAProxy `with_our_page` into a new directory and return its path.

    If the page is not found, return the bundled program's path: HTML for what is not HTTP is no reason to
    stay down.
    """
    bundled = bundled_program()
    try:
        content = with_our_page(bundled.read_bytes())
    except ConfigurationError:
        return bundled
    directory.mkdir()
    program = directory / bundled.name
    program.write_bytes(content)
    program.chmod(0o555)
    (directory / "lib").symlink_to(bundled.parent / "lib")  # where it looks for its libraries
    return program


def _page(answer: ErrorResponse, more_headers: Mapping[str, str] | None = None) -> bytes:
    """Return the whole HTTP answer for an error."""
    status, content, own_headers = answer
    body = orjson.dumps(content)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **(more_headers or {}),
        **own_headers,
        "connection": "close",
    }
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


if __name__ == "__main__":
    print(write_launcher(Path(sys.argv[1])))
