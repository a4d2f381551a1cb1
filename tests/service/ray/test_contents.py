"""The content of checkpoints belongs to a config's version."""

from __future__ import annotations

from pathlib import Path

from service.ray.config_file import ConfigFile, Overrides, read
from service.ray.contents import pinned
from tests.checkpoints import write_checkpoint
from tests.service.running import DEPLOY


def config(model: Path, masks: str = "{}") -> ConfigFile:
    text = DEPLOY.read_text().replace("masks: {}", f"masks: {masks}")
    return read(text.encode(), DEPLOY, Overrides(model=str(model)))


def test_a_start_with_other_weights_has_another_version(tmp_path: Path) -> None:
    first = pinned(config(write_checkpoint(tmp_path)))
    assert pinned(config(tmp_path)).live.version == first.live.version
    assert first.deployment["user_config"]["digests"] == first.live.digests

    write_checkpoint(tmp_path, seed=1)
    assert pinned(config(tmp_path)).live.version != first.live.version


def test_an_edit_goes_on_to_apply_while_the_files_of_a_loaded_model_are_others(tmp_path: Path) -> None:
    running = pinned(config(write_checkpoint(tmp_path)))
    write_checkpoint(tmp_path, seed=1)
    edited = pinned(config(tmp_path, '{urgent: "0.0"}'), running)
    assert edited.live.digests == running.live.digests
    assert edited.live.version != running.live.version


def test_what_cannot_be_read_is_left_to_the_check_that_says_why(tmp_path: Path) -> None:
    assert not pinned(config(tmp_path / "missing")).live.digests
    assert not pinned(config(tmp_path)).live.digests
