"""Experiments on a real `headroom serve`: replicas that are killed, and restarts."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headroom.service.experiments.store import Store
from tests.service.client import metric, request, score, send_raw
from tests.service.experimenting import config, exposed
from tests.service.experiments.making import act
from tests.service.running import PATIENCE_S, Server, restarting, still_there

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its config and its state."""
    return tmp_path_factory.mktemp("experiments")


@pytest.fixture(scope="module")
def ready_server(tiny_checkpoint: Path, directory: Path) -> Iterator[Callable[[], Server]]:
    """Returns `own_server`."""
    with restarting(lambda: Server(directory, tiny_checkpoint, live=config())) as ready_server:
        yield ready_server


@pytest.fixture
def own_server(ready_server: Callable[[], Server]) -> Server:
    """A service with an experiment. A test may end it."""
    return ready_server()


async def ask(server: Server, unit: str) -> dict[str, Any]:
    """The answer to a unit's request, asked again while there is no replica."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await send_raw(server.port, score(2, unit=unit))
        if answer.status == 200:
            body: dict[str, Any] = answer.json
            return body
        assert answer.status in (0, 503), answer
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_killed_replica_loses_no_more_than_was_buffered_and_its_successor_undoes_nothing(
    own_server: Server, directory: Path
) -> None:
    server, url = own_server, f"sqlite:///{directory / 'state/headroom/experiments.db'}"
    replica = server.replica()
    for number in range(40):
        assert (await ask(server, f"user-{number}"))["assignment"]["experiment"] == "prune20"
    replica.kill()
    assert (await ask(server, "user-40"))["assignment"] is not None
    assert server.replica() != replica
    store = Store(url)
    try:
        for _ in range(100):
            written = await metric(server.port, "headroom_exposures_written_total")
            waiting = await metric(server.port, "headroom_exposure_buffer_rows")
            if "user-40" in exposed(url) and waiting == 0:
                break
            await asyncio.sleep(0.1)
        lost = await metric(server.port, "headroom_exposures_lost_total")
        assert lost == 0
        # The counters outlive the killed replica. What was stored in the moment of the kill may not have
        # been counted.
        new = await metric(server.port, "headroom_exposures_total")
        assert max(new, written) <= len(exposed(url)) <= 41

        await asyncio.to_thread(store.append, act("rollback", time.time(), arm="pruned"))
    finally:
        store.close()

    async def is_back() -> bool:
        return (await ask(server, "user-1"))["assignment"] is None

    deadline = time.monotonic() + PATIENCE_S
    while not await is_back():
        assert time.monotonic() < deadline
    server.replica().kill()
    assert await is_back()


@pytest.mark.slow
async def test_a_driver_that_is_killed_leaves_its_directory_and_its_experiments_to_the_next_start(
    own_server: Server, ready_server: Callable[[], Server], tiny_checkpoint: Path, directory: Path
) -> None:
    """Everything else ends with it. A start with a wrong config is refused, and changes nothing."""
    before = (await send_raw(own_server.port, request("GET", "/v1/experiments"))).json
    wrong = config(traffic=2.0)
    own_server.write_config(wrong)
    assert "traffic" in own_server.wait_for_line("config refused")
    processes, (run,) = own_server.family(), own_server.run_directories()
    agents = [process for process in processes if "Agent" in " ".join(process.cmdline())]
    own_server.process.kill()
    # Ray's two agents try to tell their dead head for up to a minute, then end as well.
    assert still_there([process for process in processes if process not in agents]) == []
    for agent in agents:
        agent.kill()
    # Its directory stays until some run starts: the next one here, or a test's beside this one.
    refused = Server(directory, tiny_checkpoint, live=wrong)
    try:
        assert refused.process.wait(PATIENCE_S) == 1
        (line,) = refused.stderr.splitlines()
        assert "serve.yaml: user_config.experiments[0].traffic: " in line
    finally:
        refused.kill()
    again = ready_server()
    assert not run.exists()
    after = (await send_raw(again.port, request("GET", "/v1/experiments"))).json
    assert after["config_version"] == before["config_version"]
    assert after["experiments"][0]["started"] == before["experiments"][0]["started"]
