"""Where this user's services keep what outlives them."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """`$XDG_STATE_HOME/headroom`, or `~/.local/state/headroom` where that is not set; it may not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").absolute() / "headroom"
