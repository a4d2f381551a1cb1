"""Two minutes of `make soak`, which run beside the other tests of this folder."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service.running import lean_path

DEPLOY = Path(__file__).parents[2] / "deploy" / "serve.yaml"
STOP_S = 100.0


@dataclass(frozen=True)
class Soak:
    """A soak under way. out: its directory."""

    process: subprocess.Popen[str]
    out: Path


@pytest.fixture(scope="session", autouse=True)
def soak(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Soak | None]:
    """Start it before the first test of this folder if its own test will run: it mostly waits."""
    items = [item for item in request.session.items if item.path.name == "test_soak.py"]
    if not any(item.get_closest_marker("slow") for item in items):
        yield None
        return
    out = tmp_path_factory.mktemp("soak")
    config = shutil.copy(DEPLOY, out / "serve.yaml")
    headroom = Path(sys.executable).with_name("headroom")
    serve = f"{headroom} serve --port {{port}} --replicas 2 --device cpu"
    command = ["nice", "-n", "10", headroom, "load", "run", "--scenario", "soak", "--out", out]
    command += ["--start", f"{serve} --model {tiny_checkpoint} --config {config}"]
    command += ["--duration", "2m", "--warmup", "2s", "--rate", "3"]
    # Two minutes hold few requests between the faults, on cores that other tests use: most must be answered.
    command += ["--slo", "p50=5s,errors=50%"]
    with (out / "log").open("w") as log:
        variables = os.environ | {"PYTHONPATH": lean_path()}
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, text=True, env=variables)
        yield Soak(process, out)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)
