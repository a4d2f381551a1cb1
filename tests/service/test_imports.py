"""What a process of the service loads and leaves behind when it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.more


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by Linux's /proc")
def test_loading_leaves_no_helper_threads_behind() -> None:
    """A second set of them would put those of the forward pass to sleep after every product."""
    script = """
import os, torch
from headroom.service.scoring.loading import load_classifier
from headroom.service.config.settings import Settings
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
load_classifier(Settings(device="cpu", dtype="float32"), None)
assert torch.get_num_threads() == 4
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        (
            "headroom.service.api.app, headroom.service.replica",
            ("scipy", "pandas", "sklearn", "headroom.service.observe.traces", "opentelemetry.exporter"),
        ),
        (  # the program and Ray's own processes; Serve imports pandas
            "headroom.service.cli.program, headroom.service.ray.haproxy, headroom.service.ray.haproxy_files",
            ("scipy", "sqlalchemy", "headroom.service.api.app"),
        ),
    ],
)
def test_no_process_of_the_service_imports_a_large_library_that_it_does_not_need(
    modules: str, left_out: tuple[str, ...]
) -> None:
    """Each takes most of a second of a start, in the program and in three other processes."""
    code = f"import sys, {modules}; print([name for name in {left_out} if name in sys.modules])"
    command = [sys.executable, "-W", "ignore", "-c", code]  # warnings: Ray's own
    loaded = subprocess.run(command, check=True, capture_output=True, text=True)
    assert loaded.stdout == "[]\n"
