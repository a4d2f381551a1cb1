"""Files that are no files: a FIFO has no end to wait for, a device has no end at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models import files


@pytest.fixture(params=["fifo", "device", "directory", "large", "missing"])
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "mask.json"
    match request.param:
        case "fifo":
            os.mkfifo(path)
            return path, "it is not a regular file"
        case "device":
            path.symlink_to("/dev/zero")
            return path, "it is not a regular file"
        case "directory":
            path.mkdir()
            return path, "it is a directory"
        case "large":
            with path.open("wb") as stream:
                stream.truncate(1 << 40)
            return path, "it is larger than 64 MiB"
    return path, "No such file"


def test_what_cannot_be_read_to_its_end_is_refused(wrong: tuple[Path, str]) -> None:
    path, reason = wrong
    with pytest.raises(OSError, match=reason):
        files.read_bytes(path)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """As Kubernetes mounts a config map."""
    (tmp_path / "data").write_text("é")
    (tmp_path / "link").symlink_to("data")
    assert files.read_text(tmp_path / "link") == "é"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        files.read_text(tmp_path / "link", max_bytes=1)
