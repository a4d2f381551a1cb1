"""Experiments on a real `headroom serve` whose driver is killed."""

from pathlib import Path

import pytest

from tests.service.client import request, send_raw
from tests.service.experimenting import config
from tests.service.running import PATIENCE_S, Server, still_there

pytestmark = pytest.mark.more


@pytest.mark.slow
async def test_a_driver_that_is_killed_leaves_its_directory_and_its_experiments_to_the_next_start(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Everything else ends with it. A start with a wrong config is refused, and changes nothing."""
    wrong = config(traffic=2.0)
    killed = Server(tmp_path, tiny_checkpoint, live=config())
    try:
        assert killed.wait_until_ready(), killed.stderr
        before = (await send_raw(killed.port, request("GET", "/v1/experiments"))).json
        killed.write_config(wrong)
        assert "traffic" in killed.wait_for_line("config refused")
        processes, (run,) = killed.family(), killed.run_directories()
        agents = [process for process in processes if "Agent" in " ".join(process.cmdline())]
        killed.process.kill()
        # Ray's two agents try to tell their dead head for up to a minute, then end as well.
        assert still_there([process for process in processes if process not in agents]) == []
        for agent in agents:
            agent.kill()
    finally:
        killed.kill()
    # Its directory stays until some run starts: the next one here, or a test's beside this one.
    refused = Server(tmp_path, tiny_checkpoint, live=wrong)
    try:
        assert refused.process.wait(PATIENCE_S) == 1
        (line,) = refused.stderr.splitlines()
        assert "serve.yaml: user_config.experiments[0].traffic: " in line
    finally:
        refused.kill()
    again = Server(tmp_path, tiny_checkpoint, live=config())
    try:
        assert again.wait_until_ready(), again.stderr
        assert not run.exists()
        after = (await send_raw(again.port, request("GET", "/v1/experiments"))).json
        assert after["config_version"] == before["config_version"]
        assert after["experiments"][0]["started"] == before["experiments"][0]["started"]
    finally:
        again.kill()
