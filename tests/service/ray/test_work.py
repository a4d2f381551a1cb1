"""Work on a Ray cluster gives the answers of one machine, also if a worker is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import WORDS
from tests.service.files.killed import arguments, score_all

ROWS, WINDOW = 1200, 20


@pytest.mark.slow
def test_two_nodes_and_a_worker_killed_give_the_rows_of_one_machine(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """In a process of its own: Ray reads the environment once, when it is imported."""
    source, here, there = (tmp_path / f"{name}.jsonl" for name in ("pairs", "here", "there"))
    rows = [{"query": WORDS[i % 30], "title": f"{WORDS[i % 31]} {i} lamp"} for i in range(ROWS)]
    lines = [json.dumps(row) for row in rows]
    lines[7] = "broken"
    source.write_text("\n".join(lines) + "\n")
    score_all(arguments(source, here, tiny_checkpoint), lambda *_: None, window_rows=WINDOW)

    done = subprocess.run(
        [sys.executable, "-m", "tests.service.ray.two_nodes", source, there, tiny_checkpoint, str(WINDOW)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )

    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts == {"rows": ROWS - 1, "rejects": 1, "killed": 1}
    assert there.read_bytes() == here.read_bytes()
    assert not there.with_name("there.jsonl.parts").exists()


SCRIPT = """
import sys
import numpy as np
from models import Classifier
from models.study.runner import Runner
from service.ray import tasks
from tests.models.study.data import judged
from tests.models.study.test_prefixes import many

classifier = Classifier.load(sys.argv[1], dtype="float32", device="cpu")
here = Runner(classifier, judged()).logits(many(3, 4))
with tasks.spread(sys.argv[1], "cpu", "float32") as remote:
    there = Runner(classifier, judged(), remote=remote).logits(many(3, 4))
assert np.allclose(here, there, atol=1e-4), abs(here - there).max()
print("the same")
"""


@pytest.mark.slow
def test_a_cluster_gives_the_same_logits_and_is_gone_afterwards(tiny_checkpoint: Path) -> None:
    """In a process of its own: Ray reads the environment once, when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_checkpoint)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "the same"
