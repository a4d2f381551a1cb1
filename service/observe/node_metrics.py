"""Metrics of all processes of a node, by prometheus-client's multiprocess mode.

Each process writes its values into files of a shared directory, named after its process id, and any of them
adds all files up for a scrape. The counters and histograms of a process that ended still count, but its
gauges must go: nobody tells prometheus-client that it was killed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector


def render(directory: Path) -> bytes:
    """Return the metrics of all processes that share the directory, but no gauges of those that ended."""
    opened_by = cache(_opened_by)
    for file in directory.resolve().glob("gauge_live*.db"):
        with suppress(psutil.AccessDenied):  # another user's process
            if str(file) not in opened_by(int(file.stem.rpartition("_")[2])):
                file.unlink(missing_ok=True)  # a scrape beside this one may be faster
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def _opened_by(pid: int) -> set[str]:
    """Return the files that a process has open. In a container, process ids come again after a restart."""
    try:
        return {opened.path for opened in psutil.Process(pid).open_files()}
    except psutil.NoSuchProcess:
        return set()
