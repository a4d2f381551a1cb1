"""In a container, what a replica logs is lost with it unless `headroom serve` prints it."""

import logging
import os
from pathlib import Path

import pytest

from service.ray import notices
from service.ray.notices import MAX_LINES, MAX_RECORDS, WINDOW_S, OperatorHandler

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


def test_a_traceback_is_shown_line_by_line() -> None:
    lines: list[str] = []
    OperatorHandler(lines.append).emit(record("a pass failed", exc_info=True))
    assert lines[0] == f"{NAME}: ERROR headroom.engine: a pass failed"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "OSError: the disk is full"


def test_what_is_no_trouble_is_not_shown() -> None:
    lines: list[str] = []
    handler = OperatorHandler(lines.append)
    for name, level in (("headroom.engine", logging.INFO), ("ray.serve", logging.WARNING)):
        hand_over(handler, record("quiet", name=name, level=level))
    hand_over(handler, record("loud", name="service.experiments.writer", level=logging.WARNING))
    assert lines == [f"{NAME}: WARNING service.experiments.writer: loud"]


def test_a_flood_is_cut_and_counted() -> None:
    lines: list[str] = []
    now = [0.0]
    handler = OperatorHandler(lines.append, clock=lambda: now[0])
    for number in range(1000):
        handler.emit(record(f"failure {number}"))
    assert len(lines) == MAX_RECORDS
    now[0] += WINDOW_S
    handler.emit(record("\n".join(["long"] * 1000)))
    assert lines[MAX_RECORDS] == f"{NAME}: {1000 - MAX_RECORDS} more records are in its log"
    assert len(lines) == MAX_RECORDS + 1 + MAX_LINES


def test_the_operator_is_told_once_what_every_replica_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(notices.NOTICES, raising=False)
    notices.tell("nobody reads this")
    file = notices.notices_file(tmp_path)
    monkeypatch.setenv(notices.NOTICES, str(file))
    for line, once in (("slow", True), ("slow", True), ("slower", True), ("again", False), ("again", False)):
        notices.tell(line, once=once)
    assert file.read_text() == "slow\nslower\nagain\nagain\n"
