"""Progress of long work on standard error."""

from __future__ import annotations

import pytest

from models.commands import terminal
from models.commands.terminal import Stages


def test_a_stage_with_more_steps_than_expected_never_shows_more_than_all_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "DELAY_S", 0.0)
    monkeypatch.setattr(terminal, "LINE_S", 0.0)
    stages = Stages()
    stages.start("candidates", 2)
    for _ in range(4):
        stages.advance()
    stages.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["candidates:  50%"] + ["candidates: 100%"] * 3
    assert not any("day" in line for line in lines)
