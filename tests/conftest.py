"""Fixtures that more than one test package needs: small random checkpoints in the Hugging Face layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graded checkpoint with random weights: 3 layers x 4 heads x 32, five grades, 64 positions."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))
