"""A Redis server of a test's own, on 127.0.0.1, which keeps nothing on disk."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.referees import need

PATIENCE_S = 20.0


@contextmanager
def redis_server(directory: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Redis, or Valkey, until the block ends."""
    command = [need("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    command += ["--dir", str(directory), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_listening(port)
            yield process
        finally:
            process.kill()


def wait_until_listening(port: int) -> None:
    """Wait until a program takes connections on this port. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")
