"""Nothing that takes long is silent."""

import io
import sys
import threading

import pytest

from headroom.models import terminal


class Heard(io.StringIO):
    """A standard error stream that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.line = threading.Event()

    def flush(self) -> None:
        self.line.set()


def test_what_takes_longer_than_two_seconds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.DELAY_S == 2
    heard = Heard()
    monkeypatch.setattr(sys, "stderr", heard)
    with terminal.waiting("reading pairs.csv"):
        pass
    assert heard.getvalue() == ""
    monkeypatch.setattr(terminal, "DELAY_S", 0.01)
    with terminal.waiting("reading pairs.csv"):
        assert heard.line.wait(30)
    assert heard.getvalue() == "reading pairs.csv: 0 s\n"


def test_the_time_left_of_a_stage_counts_from_its_own_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After half an hour of training, a third of the next stage's ten seconds leave 20 s, not an hour."""
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    stages = terminal.Stages()
    stages.start("training", 100)
    clock[0] = 1800.0
    stages.advance(100)
    stages.start("speed", 9, done=3)
    capsys.readouterr()
    clock[0] = 1810.0
    stages.advance(2)
    stages.close()
    assert capsys.readouterr().err == "speed:  56%, 0:00:20 left\n", "what an earlier run did took no time"
