"""An int8 checkpoint, and a copy of it to damage."""

import shutil
from pathlib import Path

import pytest

from tests.checkpoints import write_int8


@pytest.fixture(scope="session")
def int8_checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_int8(tiny_checkpoint, tmp_path_factory.mktemp("quantized") / "int8")


@pytest.fixture
def copied(int8_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(int8_checkpoint, tmp_path / "copied"))
