"""Keeps a copy of the last config that was served, so that a wrong edit does not stop the next start.

It is the file's text, kept only if all of it was served: a part that applies at the next start may be wrong.
The copy may hold API keys, so only its owner may read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from service.state_directory import state_directory


def copy_of(path: Path) -> Path:
    """Return where the last good content of the config file at this (absolute) path is kept."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return state_directory() / "configs" / f"{name}.yaml"


def keep(path: Path, text: str) -> None:
    """Keep the text of a config that is served. Does nothing if the home directory cannot be written."""
    target = copy_of(path)
    fresh = target.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)
