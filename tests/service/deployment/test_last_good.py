"""A wrong edit of the config must not keep the service from starting again."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.serve import _load
from service.deployment import last_good
from service.deployment.config_file import ConfigFileError, Overrides
from tests.service.running import DEPLOY


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_last_good_config_is_served_where_the_file_is_wrong(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    overrides = Overrides(model=str(tiny_checkpoint))
    file.write_text(DEPLOY.read_text())
    good = _load(file, overrides)
    last_good.keep(file, good.text)
    for wrong in ("user_config: [", DEPLOY.read_text().replace("masks: {}", 'masks: {bad: "77.0"}')):
        file.write_text(wrong)
        assert _load(file, overrides).live == good.live
        assert f"the last good one ({good.live.version}) is served: {file}" in capsys.readouterr().err


def test_a_copy_whose_model_is_gone_does_not_hide_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    last_good.keep(file, DEPLOY.read_text().replace("args: {}", "args: {model: /no/longer/there}"))
    file.write_text("user_config: [")
    with pytest.raises(ConfigFileError, match=str(file)):
        _load(file, Overrides())


def test_a_config_that_was_never_good_is_refused_by_its_own_name(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    other = tmp_path / "other.yaml"
    last_good.keep(other, DEPLOY.read_text())
    file = tmp_path / "serve.yaml"
    file.write_text("user_config: [")
    with pytest.raises(ConfigFileError, match=str(file)):
        _load(file, Overrides(model=str(tiny_checkpoint)))


def test_the_copy_may_hold_keys_and_is_for_its_owner_only(tmp_path: Path) -> None:
    for _ in range(2):
        last_good.keep(tmp_path / "serve.yaml", "api_keys: s3cr3t")
        assert last_good.copy_of(tmp_path / "serve.yaml").stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    last_good.keep(tmp_path / "serve.yaml", "anything")
    assert not last_good.copy_of(tmp_path / "serve.yaml").exists()
    assert blocked.read_text() == ""
