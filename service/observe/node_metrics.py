"""Metrics of all processes of a node, by prometheus-client's multiprocess mode.

Each process writes its values into files of a shared directory, named after its process id, and any of them
adds all files up for a scrape. The counters and histograms of a process that ended still count, but its
gauges must go: nobody tells prometheus-client that it was killed.

prometheus-client maps files with holes, and a write into a hole ends the process (SIGBUS) if the disk is
full. So importing this module makes the library reserve the disk space of a file when it is made.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

FILE_BYTES = 1 << 20
"""Size of a process's file, enough for about 8,000 series; beyond that it grows without a reservation."""


class ReservedFile(MmapedDict):
    """A file of values. Raises OSError if the disk has no room for it."""

    def __init__(self, filename: str) -> None:
        with Path(filename).open("ab") as file:  # open until the end: `_opened_by` asks for it
            if sys.platform.startswith("linux"):  # macOS has no such call
                os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
            super().__init__(filename)  # type: ignore[no-untyped-call]


values.MmapedDict = ReservedFile  # type: ignore[attr-defined,assignment]


def render(directory: Path) -> bytes:
    """Return the metrics of all processes that share the directory, but no gauges of those that ended."""
    by_process: defaultdict[int, list[Path]] = defaultdict(list)
    for file in directory.resolve().glob("*.db"):
        by_process[int(file.stem.rpartition("_")[2])].append(file)
    for pid, files in by_process.items():
        with suppress(psutil.AccessDenied):  # another user's process
            opened = _opened_by(pid)
            for file in files:
                if str(file) not in opened:
                    _retire(file)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def _opened_by(pid: int) -> set[str]:
    """Return the files that a process has open. In a container, process ids come again after a restart."""
    try:
        return {opened.path for opened in psutil.Process(pid).open_files()}
    except psutil.NoSuchProcess:
        return set()


def _retire(file: Path) -> None:
    """Remove a gauge of a process that ended; give back the disk space that a counter of it does not use."""
    if file.name.startswith("gauge_live"):
        file.unlink(missing_ok=True)  # a scrape beside this one may be faster
    elif file.stat().st_size >= FILE_BYTES:
        with file.open("rb") as values_file:
            (used,) = struct.unpack("i", values_file.read(4))
        os.truncate(file, max(used, 8))


class NodeGauge:
    """A process's part of a gauge of the replicas (mode `livemax`, no labels), which is no replica itself.

    directory: the one that the node's replicas share. name, text: as the replicas declare the gauge.
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
