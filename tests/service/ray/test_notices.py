"""In a container, what a replica logs is lost with it unless it is on standard output."""

import contextvars
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headroom.service.observe.access_log import AccessLog
from headroom.service.ray import notices
from headroom.service.ray.notices import MAX_LINES, MAX_RECORDS, WINDOW_S, Notices, OperatorHandler, text_of

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
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notices:
    """The reading end of what this process tells the operator."""
    monkeypatch.setenv(notices.NOTICES, str(notices.notices_pipe(tmp_path)))
    return Notices(tmp_path)


def read(received: Notices) -> list[str]:
    """What the operator reads at a terminal."""
    return [line for notice in received.read() for line in text_of(notice).splitlines()]


def test_a_record_is_json_on_a_containers_output_and_names_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a Ray cluster the variable names the output of the container's first process, which is a pipe."""
    output, of_container = os.pipe()
    monkeypatch.setenv(notices.NOTICES, f"/proc/{os.getpid()}/fd/{of_container}")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    scope: dict[str, Any] = {"method": "POST", "path": "/v1/score"}
    scope["headers"] = [(b"traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode())]

    def answer_a_request() -> None:
        request = AccessLog("off").start(scope, "mine-1")
        request.set_arm("prune20", "pruned")
        request.config_version = "0123456789ab"
        OperatorHandler().emit(record("two\nlines " + "\u00e9" * 9_000, exc_info=True))

    contextvars.copy_context().run(answer_a_request)
    (line,) = os.read(output, 100_000).decode("ascii").splitlines()
    assert len(line) < 4_096, "another process's line could stand within it"
    written = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written["time"])
    assert (written["level"], written["logger"]) == ("ERROR", "headroom.engine")
    assert written["message"].startswith("two\nlines \u00e9")
    assert (written["request_id"], written["trace_id"]) == ("mine-1", trace)
    assert (written["experiment"], written["arm"]) == ("prune20", "pruned")
    assert written["config_version"] == "0123456789ab"
    os.close(of_container)
    os.close(output)


def test_a_long_traceback_keeps_its_end(received: Notices) -> None:
    try:
        raise OSError("x" * 5_000 + "the disk is full")
    except OSError as raised:
        error = (OSError, raised, raised.__traceback__)
    OperatorHandler().emit(
        logging.LogRecord("headroom", logging.ERROR, __file__, 1, "a pass failed", None, error)
    )
    first, *_, last = read(received)
    assert first.endswith("a pass failed")
    assert last.endswith("the disk is full")


def test_what_is_no_trouble_is_not_shown(received: Notices) -> None:
    handler = OperatorHandler()
    for name, level in (("headroom.engine", logging.INFO), ("ray.serve", logging.WARNING)):
        hand_over(handler, record("quiet", name=name, level=level))
    hand_over(handler, record("loud", name="headroom.service.experiments.writer", level=logging.WARNING))
    assert read(received) == [f"{NAME}: WARNING headroom.service.experiments.writer: loud"]


def test_a_flood_is_cut_and_counted(received: Notices) -> None:
    handler = OperatorHandler()
    for number in range(1000):
        handler.emit(record(f"failure {number}"))
    assert len(read(received)) == MAX_RECORDS
    later = record("\n".join(["long"] * 1000))
    later.created += WINDOW_S
    handler.emit(later)
    first, *rest = read(received)
    assert first == f"{NAME}: {1000 - MAX_RECORDS} more records are in its log"
    assert len(rest) == MAX_LINES


def test_the_operator_reads_once_what_every_replica_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(notices.NOTICES, raising=False)
    notices.notify_operator("nobody reads this")
    monkeypatch.setenv(notices.NOTICES, str(notices.notices_pipe(tmp_path)))
    notices.notify_operator("nobody reads this either, as there is no pipe")
    received = Notices(tmp_path)
    for line, once in (("slow", True), ("slow", True), ("slower", True), ("again", False), ("again", False)):
        notices.notify_operator(line, once=once)
    of_another_replica = {"time": "", "level": "WARNING", "message": "slower", "once": True}
    Path(os.environ[notices.NOTICES]).write_text(json.dumps(of_another_replica) + "\n")
    assert read(received) == ["slow", "slower", "again", "again"]
    assert read(received) == []
    notices.notify_operator("slow", once=True)
    notices.notify_operator("two\nlines")
    assert read(received) == ["two lines"]


def test_the_operator_reads_notices_when_no_disk_has_room(tmp_path: Path) -> None:
    """The size of every file is limited to nothing: a full disk without the disk."""
    received = Notices(tmp_path)
    code = """
import resource, signal
from headroom.service.ray.notices import notify_operator
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
notify_operator("the database fails", once=True)
for _ in range(10_000):
    notify_operator("flood")
notify_operator("never blocks")
"""
    variables = os.environ | {notices.NOTICES: str(notices.notices_pipe(tmp_path))}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=60)
    lines = read(received)
    assert lines[0] == "the database fails"
    assert set(lines[1:]) == {"flood"}
    assert not [file for file in tmp_path.iterdir() if file.is_file()]
