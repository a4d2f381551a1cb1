"""Programs that are missing: nobody waits for a long install in vain, and CI skips nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import referees


def test_a_missing_program_skips_its_tests_and_says_what_to_run_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without apt-get too
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"hey is missing; run: .*install.* hey"):
        referees.need("hey")
    assert referees.main() == 0
    assert "the load generator's tests: will be skipped without hey" in capsys.readouterr().err

    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="hey is missing"):
        referees.need("hey")
    assert referees.main() == 1

    hey = tmp_path / "hey"
    hey.touch(mode=0o755)
    assert referees.need("hey") == str(hey)
