"""Ctrl-C ends a study at once, also in native code and from a shell's background, and loses nothing that
is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.models.commands.test_study import write

# One native call, which returns to Python only after a minute or more.
NATIVE = """
import hashlib, signal
from models.commands.interrupt import ends_at_once
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a job in the background
with ends_at_once("headroom: stopped"):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
"""


BAR = """
import sys, time
from rich.console import Console
from rich.progress import Progress
from models.commands.interrupt import ends_at_once
with ends_at_once("headroom: stopped"):
    Progress(console=Console(stderr=True)).start()
    print("ready", file=sys.__stdout__, flush=True)  # rich redirects the other to the bar
    time.sleep(60)
"""


def test_sigint_gives_a_terminal_its_cursor_back() -> None:
    terminal, stderr = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", BAR],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=os.environ | {"TERM": "xterm"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    shown = os.read(terminal, 100_000)
    os.close(terminal)
    os.close(stderr)
    assert process.returncode == 130
    assert b"headroom: stopped" in shown
    assert 0 <= shown.rfind(b"\x1b[?25l") < shown.rfind(b"\x1b[?25h")


def test_sigint_ends_native_code_within_seconds_with_one_line_and_130() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NATIVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "headroom: stopped\n"
    assert time.monotonic() - began < 20  # of 60


def test_a_stopped_study_leaves_whole_parts_and_says_how_to_go_on(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", 12)
    out = tmp_path / "out"
    command = [
        *(
            sys.executable,
            "-c",
            "from service.cli import main; main()",
            "study",
            "layers",
            "--data",
            str(data),
        ),
        *("--out", str(out), "--resamples", "200", "--dtype", "float32"),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    while not list((out / "cache").glob("*.npy")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    lines = err.strip().splitlines()
    assert lines[-1] == "headroom: stopped; the same command goes on from what is done"
    assert not (out / "report.json").exists()
    parts = list((out / "cache").glob("*.npy"))
    assert parts
    assert all(np.load(part).size for part in parts)
