"""`headroom study`, as typed at a prompt."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest


def write(path: Path, queries: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    words = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel"]
    rows = [
        {
            "query": f"lamp {seed} {i % queries}",
            "title": " ".join(rng.choice(words, 4)),
            "grade": int(rng.integers(0, 5)),
        }
        for i in range(5 * queries)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.more
def test_a_stopped_study_leaves_whole_parts_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C ends it with one line."""
    data = write(tmp_path / "d.jsonl", 12)
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
