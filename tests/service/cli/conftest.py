"""The `headroom` program as a fixture, and the options that name a small network."""

from pathlib import Path

import pytest

from tests.prompt import run as run


@pytest.fixture
def options(tiny_checkpoint: Path) -> list[str]:
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--dtype", "float32"]
