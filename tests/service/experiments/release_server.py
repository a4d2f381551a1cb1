"""Serves with whichever release of headroom is on the path, without Ray; prints its port once it is ready.

python release_server.py MODEL DATABASE_URL LIVE_CONFIG_AS_JSON

It runs the code of earlier releases too, so it uses only what 0.2.0 has.
"""

import asyncio
import socket
import sys

import uvicorn

from headroom.service.api import create_app
from headroom.service.config.settings import LiveConfig, Settings
from headroom.service.observe.metrics import Metrics
from headroom.service.replica import Replica


async def main(model: str, database_url: str, live: str) -> None:
    settings = Settings(
        model=model, device="cpu", dtype="float32", max_queue_s=60, database_url=database_url, api_keys=KEYS
    )
    metrics = Metrics()
    replica = await Replica.start(settings, LiveConfig.model_validate_json(live), metrics, threads=1)
    app = create_app(settings, metrics)
    app.state.backend = replica
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        await server.serve(sockets=[listener])
    await replica.drain()


KEYS = "plain,boss;role=admin"

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
