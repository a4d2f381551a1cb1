"""The file of a rate that processes share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.config.token_bucket import TokenBucket


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS cannot reserve disk space")
def test_the_file_has_no_hole_whose_first_write_could_fail(tmp_path: Path) -> None:
    """A write into a hole of a mapped file ends the process if the disk is full."""
    file = tmp_path / "bucket"

    TokenBucket(1.0, 1.0, lambda: 0.0, file)

    assert file.stat().st_size == 16
    assert file.stat().st_blocks > 0
