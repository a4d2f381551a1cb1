"""`headroom study`, as typed at a prompt."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import random_pairs
from tests.prompt import write_labelled


@pytest.mark.more
def test_a_stopped_study_leaves_whole_parts_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C ends it with one line."""
    rows = [(f"lamp {row % 12}", title, row % 5) for row, (_, title) in enumerate(random_pairs(60))]
    data = write_labelled(tmp_path / "d.csv", rows)
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from headroom.service.cli import main; main()", "study", "layers"]
    command += ["--data", str(data), "--out", str(out), "--dtype", "float32"]
    pipe, environment = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
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
