"""Metrics of all processes of a node, by prometheus-client's multiprocess mode.

Each process writes its values into files of a shared directory, named after its process id, and any of them
adds all files up for a scrape. The counters and histograms of a process that ended still count, but its
gauges must go: nobody tells prometheus-client that it was killed.

prometheus-client maps files with holes, and a write into a hole ends the process (SIGBUS) if the disk is
full. So importing this module makes the library reserve the disk space of a file when it is made.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

FILE_BYTES = 1 << 20
"""Size of a file, enough for about 8,000 series; beyond that it grows without a reservation."""


class ReservedFile(MmapedDict):
    """A file of values. Raises OSError if the disk has no room for it."""

    def __init__(self, filename: str) -> None:
        with Path(filename).open("ab") as file:  # open until the end: `_is_used` asks for it
            if sys.platform.startswith("linux"):  # macOS has no such call
                os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
            super().__init__(filename)  # type: ignore[no-untyped-call]


values.MmapedDict = ReservedFile  # type: ignore[attr-defined,assignment]


def render(directory: Path) -> bytes:
    """Return the metrics of all processes that share the directory, but no gauges of those that ended."""
    for file in directory.glob("gauge_live*.db"):
        if not _is_used(file):
            file.unlink(missing_ok=True)  # a scrape beside this one may be faster
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


class NodeGauge:
    """A gauge without labels, written by a process of the node that is no replica.

    A scrape shows the largest value of the node's live processes, as for a gauge in the mode `livemax`.

    Args:
        directory: the one that the node's replicas share.
        name: the full name of a gauge of the replicas.
        text: that gauge's description.

    Raises OSError if the disk has no room.
    """

    def __init__(self, directory: Path, name: str, text: str) -> None:
        self._file = ReservedFile(str(directory / f"gauge_livemax_{os.getpid()}.db"))
        self._key = mmap_key(name, name, [], [], text)

    def set(self, value: float) -> None:
        """Show this value from the next scrape on, until `close` or the process's end."""
        self._file.write_value(self._key, value, time.time())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the gauge: scrapes show it no longer."""
        self._file.close()  # type: ignore[no-untyped-call]


def _is_used(file: Path) -> bool:
    """Return whether the process that the file is named after has it open.

    In a container, the processes after a restart have the process ids of those before it.
    """
    owner = int(file.stem.rpartition("_")[2])
    try:
        return str(file.resolve()) in {opened.path for opened in psutil.Process(owner).open_files()}
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
