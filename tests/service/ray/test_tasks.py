"""`--ray`: the same answers from a cluster's tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
