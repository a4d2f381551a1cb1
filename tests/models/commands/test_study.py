"""`headroom study`, as typed at a prompt."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.prompt import Run


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


def test_a_study_says_beforehand_what_it_cannot_show(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    data, holdout = write(tmp_path / "d.jsonl", 12), write(tmp_path / "h.jsonl", 14, seed=1)
    out = tmp_path / "out"
    arguments = ("study", "search", "--model", str(tiny_checkpoint), "--data", str(data), "--out", str(out))
    alone = run(*arguments, "--quick").err
    assert "cannot show that a smaller network is good enough: that takes other queries (--holdout)" in alone
    few = run(*arguments, "--quick", "--holdout", str(holdout)).err
    ranked = sum(len({row["grade"] for row in rows}) > 1 for rows in by_query(holdout).values())
    assert (
        f"{ranked} of the 14 queries of {holdout} have titles of different grades, and that takes 183" in few
    )
    assert "5 random networks no p-value is below 0.17" in few
    report = json.loads((out / "report.json").read_text())
    assert len(report["limits"]) == 2
    assert all(sentence in (out / "report.html").read_text() for sentence in report["limits"])


def by_query(path: Path) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        rows.setdefault(json.loads(line)["query"], []).append(json.loads(line))
    return rows


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
