"""The processes that a run starts, directly or through others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def family() -> list[psutil.Process]:
    """All descendants of this process. Take it before ending any: orphans are nobody's descendants."""
    return psutil.Process().children(recursive=True)


def kill(processes: Iterable[psutil.Process], *, grace_s: float = 0.0) -> None:
    """Ends those still there after the grace; psutil knows a process from a later one with its pid."""
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
