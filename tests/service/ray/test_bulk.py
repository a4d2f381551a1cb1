"""`headroom score --ray` on a cluster of two nodes, one of whose workers is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import WORDS
from tests.service.files.killed import arguments, score_all

ROWS, WINDOW = 600, 20


@pytest.mark.slow
def test_two_nodes_and_a_worker_killed_give_the_rows_of_one_machine(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """In a process of its own: Ray reads the environment once, when it is imported."""
    inputs, here, there = tmp_path / "in", tmp_path / "here", tmp_path / "there"
    inputs.mkdir()
    for part in range(2):
        rows = [{"query": WORDS[i % 30], "title": f"{WORDS[i % 31]} {i} lamp"} for i in range(ROWS)]
        lines = [json.dumps(row) for row in rows]
        lines[7] = "broken"
        (inputs / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    score_all(arguments(inputs, here, tiny_checkpoint), lambda *_: None, window_rows=WINDOW)

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.service.ray.two_nodes",
            inputs,
            there,
            tiny_checkpoint,
            str(WINDOW),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )

    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts == {"rows": 2 * (ROWS - 1), "rejects": 2, "killed": 1}
    for name in ("0.jsonl", "1.jsonl"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    assert not there.with_name("there.parts").exists()
