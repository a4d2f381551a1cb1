"""In a container, what a replica logs is lost with it unless `headroom serve` prints it."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.service.ray import notices
from headroom.service.ray.notices import MAX_LINES, MAX_RECORDS, WINDOW_S, OperatorHandler

NAME = f"replica {os.getpid()}"


def record(
    message: str, exc_info: bool = False, name: str = "headroom.engine", level: int = logging.ERROR
) -> logging.LogRecord:
    error = None
    if exc_info:
        try:
            raise OSError("the disk is full")
        except OSError as raised:
            error = (OSError, raised, raised.__traceback__)
    return logging.LogRecord(name, level, __file__, 1, message, None, error)


def hand_over(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Give a handler a record as its logger does."""
    if record.levelno >= handler.level:
        handler.handle(record)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the operator reads."""
    written: list[str] = []
    monkeypatch.setattr(notices, "notify_operator", written.append)
    return written


def test_a_traceback_is_shown_line_by_line(lines: list[str]) -> None:
    OperatorHandler().emit(record("a pass failed", exc_info=True))
    assert lines[0] == f"{NAME}: ERROR headroom.engine: a pass failed"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "OSError: the disk is full"


def test_what_is_no_trouble_is_not_shown(lines: list[str]) -> None:
    handler = OperatorHandler()
    for name, level in (("headroom.engine", logging.INFO), ("ray.serve", logging.WARNING)):
        hand_over(handler, record("quiet", name=name, level=level))
    hand_over(handler, record("loud", name="headroom.service.experiments.writer", level=logging.WARNING))
    assert lines == [f"{NAME}: WARNING headroom.service.experiments.writer: loud"]


def test_a_flood_is_cut_and_counted(lines: list[str]) -> None:
    handler = OperatorHandler()
    for number in range(1000):
        handler.emit(record(f"failure {number}"))
    assert len(lines) == MAX_RECORDS
    later = record("\n".join(["long"] * 1000))
    later.created += WINDOW_S
    handler.emit(later)
    assert lines[MAX_RECORDS] == f"{NAME}: {1000 - MAX_RECORDS} more records are in its log"
    assert len(lines) == MAX_RECORDS + 1 + MAX_LINES


def test_the_operator_reads_once_what_every_replica_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(notices.NOTICES, raising=False)
    notices.notify_operator("nobody reads this")
    monkeypatch.setenv(notices.NOTICES, str(notices.notices_pipe(tmp_path)))
    notices.notify_operator("nobody reads this either, as there is no pipe")
    received = notices.Notices(tmp_path)
    for line, once in (("slow", True), ("slow", True), ("slower", True), ("again", False), ("again", False)):
        notices.notify_operator(line, once=once)
    assert received.read() == ["slow", "slower", "again", "again"]
    assert received.read() == []
    notices.notify_operator("slow", once=True)
    notices.notify_operator("two\nlines")
    assert received.read() == ["two lines"]


def test_the_operator_reads_notices_when_no_disk_has_room(tmp_path: Path) -> None:
    """The size of every file is limited to nothing: a full disk without the disk."""
    received = notices.Notices(tmp_path)
    code = """
import resource, signal
from headroom.service.ray.notices import notify_operator
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
notify_operator("the database fails", once=True)
for _ in range(100_000):
    notify_operator("flood")
notify_operator("never blocks")
"""
    variables = os.environ | {notices.NOTICES: str(notices.notices_pipe(tmp_path))}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=60)
    lines = received.read()
    assert lines[0] == "the database fails"
    assert set(lines[1:]) == {"flood"}
    assert not [file for file in tmp_path.iterdir() if file.is_file()]
