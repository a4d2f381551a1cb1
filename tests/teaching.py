"""What the tests of trainings share: files for distillations, and how a run is stopped."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.checkpoints import random_pairs
from tests.prompt import write_labelled


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs without grades, four titles a query."""
    rows = [f"{query} {number // 4}\t{title}" for number, (query, title) in enumerate(random_pairs(200))]
    file = tmp_path / "pairs.tsv"
    file.write_text("query\ttitle\n" + "\n".join(rows) + "\n")
    return file


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Two titles for each of 20 other queries, one of which is right."""
    rows = [(f"lamp {i}", title, grade) for i in range(20) for title, grade in (("a lamp", 4), ("wood", 0))]
    return write_labelled(tmp_path / "judged.csv", rows)


_SAVING_OFTEN = """
from headroom.models.training import loop; loop.CHECKPOINT_SECONDS = 0.2
from headroom.service.cli import main; main()
"""
PROGRAM = [sys.executable, "-c", _SAVING_OFTEN]
"""The `headroom` program, which writes the state of a training five times a second."""


def stop_at_a_checkpoint(command: Sequence[str], progress: Path, out: Path) -> None:
    """Start a training, send it SIGINT once its state is written, and check how it ends."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not progress.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "headroom: stopped; the same command goes on from the last checkpoint"
    assert not out.exists()
