"""The clients' environments: a missing one fails the tests that need it, with the command to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import environments


def test_an_environment_that_is_missing_or_old_fails_with_the_command_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    with pytest.raises(pytest.fail.Exception, match="sdk is missing; run: make clients"):
        environments.python("sdk")
    installed = tmp_path / "sdk" / "installed.txt"
    installed.parent.mkdir()
    installed.write_text("cohere==1.0\n")
    with pytest.raises(pytest.fail.Exception, match=r"not what sdk\.txt says any more; run: make clients"):
        environments.python("sdk")
