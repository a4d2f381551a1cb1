"""`headroom serve` with models of the hub, from a stand-in of it, until what Ray depends on dies."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from headroom.models.cores import cores
from headroom.service.config.settings import LiveConfig
from headroom.service.ray import autoscaling
from tests.checkpoints import write_checkpoint
from tests.models.checkpoint.hub_server import running_hub
from tests.service.running import PATIENCE_S, Server, still_there

pytestmark = [pytest.mark.slow, pytest.mark.more]


@pytest.mark.usefixtures("foreign")
def test_models_are_downloaded_once_by_the_program_and_never_by_a_replica_and_all_ends_with_the_gcs(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unasked, each core has a replica, which imports nothing of the directory of the start."""
    with running_hub() as hub:
        (tiny,) = hub.add("org/tiny", tiny_checkpoint).commits
        old, new = hub.add(
            "org/other", *(write_checkpoint(tmp_path / str(i), seed=i) for i in (1, 2))
        ).commits
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        variants: list[dict[str, Any]] = [
            {"name": "full"},
            {"name": "again", "checkpoint": "org/tiny"},
            {"name": "old", "checkpoint": "org/other@v1"},
        ]
        server = Server(tmp_path, Path("org/tiny"), live={"variants": variants}, replicas=None)
        try:
            assert server.wait_until_ready(), server.stderr
            said = server.stderr.splitlines()
            downloads = [line for line in said if "downloading" in line]
            assert len(downloads) == 2
            assert f"downloading org/other@v1 (commit {old[:12]}, " in downloads[1]
            assert said.index(downloads[1]) < said.index("headroom: starting Ray")
            assert loaded(server) == [("org/tiny", tiny), ("org/other", old)]
            # Two questions for each name: is it there, and what is in it.
            assert sorted(hub.asked) == ["org/other"] * 2 + ["org/tiny"] * 2

            server.write_config({"variants": [*variants, {"name": "new", "checkpoint": "org/other"}]})
            server.wait_for_line("config applied")
            assert loaded(server)[-1] == ("org/other", new)
            server.write_config({"variants": [*variants, {"name": "none", "checkpoint": "org/none"}]})
            refusal = server.wait_for_line("config refused")
            assert "variants.none.checkpoint: there is no directory org/none, and " in refusal
            assert hub.downloads.count("model.safetensors") == 3
            assert sorted(hub.asked) == ["org/none"] + ["org/other"] * 4 + ["org/tiny"] * 2

            hub.add("org/silent", tiny_checkpoint, fault="silent")
            server.write_config({"variants": [*variants, {"name": "slow", "checkpoint": "org/silent"}]})
            assert hub.is_silent.wait(20)
            urgent = {"variants": variants, "masks": {"urgent": "0.0"}}
            server.write_config(urgent)
            server.wait_for_line("it was edited again before its checkpoints were here")
            server.wait_for_line(f"config applied: version {LiveConfig.model_validate(urgent).version}")
            dies_with_the_gcs(server)
        finally:
            server.kill()


def dies_with_the_gcs(server: Server) -> None:
    """Replicas and HAProxy outlive the GCS: they would answer without anybody who can replace them."""
    assert len(server.replicas()) == autoscaling.replicas(cores(), gpus=0)
    processes = server.family()
    # Ray would give replicas less of the processor than other programs get.
    assert {process.nice() for process in processes} == {os.nice(0)}
    next(process for process in processes if process.name() == "gcs_server").kill()
    killed = time.monotonic()
    assert server.process.wait(PATIENCE_S) == 1
    assert time.monotonic() - killed < 10
    line = server.stderr.splitlines()[-1]
    assert line.startswith("headroom: gcs_server ended, and Ray cannot go on without it")
    assert still_there(processes) == []


def loaded(server: Server) -> list[tuple[str, str]]:
    """The repository and commit of each loaded checkpoint."""
    models = requests.get(f"{server.url}/v1/models", timeout=20).json()["models"]
    return [(model["repository"], model["commit"]) for model in models]
