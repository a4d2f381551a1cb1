"""The directory for files that this user's services keep between runs; only this user may read them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/headroom`, or `~/.local/state/headroom` if that is unset; it may not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").absolute() / "headroom"


def make_private(file: Path) -> None:
    """Create an empty file (mode 0600) and its directory (0700) if they are missing.

    The mode of others stays as it is, except that the state directory is always closed to other users.
    Raises OSError.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.parent.absolute() == state_directory():
        with contextlib.suppress(PermissionError):  # somebody else's, who lets this user write there
            file.parent.chmod(0o700)
    with contextlib.suppress(FileExistsError):  # closing a file that is there would end SQLite's locks
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
