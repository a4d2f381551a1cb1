"""The services that other people's clients are driven against, and what the clients did there."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients import environments
from tests.service.page.seeding import served
from tests.service.running import Server

QUERY = "steel angle bracket"
DOCUMENTS = [
    "wood deck screws",
    "simpson strong-tie 12-gauge angle",
    "steel angle bracket for decks",
    "kitchen lamp",
    "usb charger cable",
    "wood deck screws",  # scores as the first: ties keep the request's order
]
KEY = "s3cr3t"

Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="package")
def locked(tiny_checkpoint: Path) -> Iterator[str]:
    """The address of a service that takes one API key, and no request while another one waits."""
    with served(tiny_checkpoint, api_keys=KEY, max_queue_tokens=1, max_batch_tokens=64) as url:
        yield url


@contextmanager
def a_full_queue(url: str, wanted: Path) -> Iterator[None]:
    """Keep the queue full, but for moments between two long requests, while there is a file in `wanted`."""
    done = threading.Event()
    long = {"query": QUERY, "titles": [" ".join(DOCUMENTS * 2)] * 300}

    def fill() -> None:
        with httpx.Client(headers={"authorization": f"Bearer {KEY}"}, timeout=60) as session:
            while not done.wait(0.01):
                while any(wanted.iterdir()) and not done.is_set():
                    session.post(f"{url}/v1/score", json=long)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="package")
def outcomes(server: Server, locked: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcomes]:
    """What the clients of each environment did; the environments run at the same time."""
    names = ("sdk", "frameworks")
    for name in names:
        environments.python(name)  # fails at once if it is missing
    fill = tmp_path_factory.mktemp("fill")
    asked = {"url": server.url, "locked": locked, "key": KEY, "query": QUERY, "documents": DOCUMENTS}

    def run(name: str) -> Outcomes:
        return environments.run(name, f"{name}.py", **asked, fill=str(fill / name))

    with a_full_queue(locked, fill), ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


@pytest.fixture(scope="package")
def sdk(outcomes: dict[str, Outcomes]) -> Outcomes:
    """What the clients of `scripts/sdk.py` did."""
    return outcomes["sdk"]


@pytest.fixture(scope="package")
def frameworks(outcomes: dict[str, Outcomes]) -> Outcomes:
    """What the clients of `scripts/frameworks.py` did."""
    return outcomes["frameworks"]
