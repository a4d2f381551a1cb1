"""Serves without Ray in a process of its own, and prints its port once it is ready.

python -m tests.service.experiments.serving SETTINGS LIVE_CONFIG (both JSON)
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.service.experimenting import BOSS, KEYS

ROOT = Path(__file__).parents[3]


@contextmanager
def serving(model: Path, live: dict[str, Any], **settings: Any) -> Iterator[httpx.Client]:
    """A client of a service in another process, with an admin's key. Ends it with SIGTERM."""
    settings = {"model": str(model), "api_keys": KEYS, "service_name": "headroom"} | settings
    arguments = [json.dumps(settings), json.dumps(live)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.service.experiments.serving", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "it did not start"
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=BOSS, timeout=60) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


async def main(settings: str, live: str) -> None:
    from headroom.service.api import create_app
    from headroom.service.config.settings import LiveConfig, Settings
    from headroom.service.observe.metrics import Metrics
    from headroom.service.replica import Replica

    limits = {"device": "cpu", "dtype": "float32", "max_queue_s": 60}
    read = Settings.model_validate(limits | json.loads(settings))
    metrics = Metrics()
    replica = await Replica.start(read, LiveConfig.model_validate_json(live), metrics, threads=1)
    app = create_app(read, metrics)
    app.state.backend = replica
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        await server.serve(sockets=[listener])
    await replica.drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
