"""The directory for files that this user's services keep between runs."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/headroom`, or `~/.local/state/headroom` if that is unset; it may not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").absolute() / "headroom"
