"""Ctrl-C ends a study with one line, and loses nothing that is done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.models.commands.test_study import write


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
        *("--out", str(out), "--dtype", "float32"),
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
