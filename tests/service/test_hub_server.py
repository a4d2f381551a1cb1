"""`headroom serve` with models of the hub, from a stand-in of it."""

from pathlib import Path
from typing import Any

import pytest
import requests

from headroom.service.config.settings import LiveConfig
from tests.checkpoints import write_checkpoint
from tests.models.checkpoint.hub_server import running_hub
from tests.service.running import Server

pytestmark = pytest.mark.more


def test_models_are_downloaded_once_by_the_program_and_never_by_a_replica(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        server = Server(tmp_path, Path("org/tiny"), live={"variants": variants})
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
            assert server.stop() == 0
        finally:
            server.kill()


def loaded(server: Server) -> list[tuple[str, str]]:
    """The repository and commit of each loaded checkpoint."""
    models = requests.get(f"{server.url}/v1/models", timeout=20).json()["models"]
    return [(model["repository"], model["commit"]) for model in models]
