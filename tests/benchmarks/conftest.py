"""Fixtures of the benchmarks' tests: one running `headroom serve` with a small model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from benchmarks.serving import CONFIG, Start, headroom
from tests.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that some tens of requests a second saturate, so that a short load is enough."""
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 512}
    return write_checkpoint(tmp_path_factory.mktemp("small"), **shape)


@pytest.fixture(scope="package")
def start(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Stands in for `headroom`: a server that runs already, with the variants of deploy/serve.yaml."""
    directory = tmp_path_factory.mktemp("server")
    config = directory / "config.yaml"
    text = CONFIG.read_text("utf-8")
    for name, mask in (("pruned20", "0.*"), ("pruned30", "0-1.*")):
        text = text.replace(f'"@{name}", sliced: true, optional: true', f'"{mask}", sliced: true')
    config.write_text(text, "utf-8")
    before = psutil.Process().children(recursive=True)
    with headroom(config, small_checkpoint, replicas=1) as server:
        yield lambda *_, **__: nullcontext(server)
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    lines = [" ".join(process.cmdline()) for process in left]
    assert not any("headroom serve" in line or "ray" in line for line in lines)
