"""What starting a replica leaves in its process: threads, and imported libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by Linux's /proc")
def test_loading_leaves_no_helper_threads_behind() -> None:
    """A second set of them would put those of the forward pass to sleep after every product."""
    script = """
import os, torch
from service.scoring.loading import load_classifier
from service.config.settings import Settings
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
load_classifier(Settings(device="cpu", dtype="float32"), None)
assert torch.get_num_threads() == 4
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_replica_imports_no_large_library_that_it_does_not_need() -> None:
    code = """
import sys, service.api, service.replica
print(sorted({"scipy", "pandas", "sklearn"} & set(sys.modules)))
"""
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout == "[]\n"
