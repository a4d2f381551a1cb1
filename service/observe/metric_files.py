"""The files of metrics that the replicas of a node share: prometheus-client's multiprocess mode.

Each process writes its values into files named after its process id, and whoever answers a scrape adds all
files up. prometheus-client leaves three things to its users:

* It maps files with holes, and a write into a hole ends the process (SIGBUS) while the disk is full. So
  importing this module makes the library's values use `LenientFile`, whose space is reserved.
* The counts of a process that ended still count. `fold` adds them up in one file per kind, so that replicas
  which end again and again fill no disk and slow no scrape.
* The gauges of a process that ended must go. Nobody says that it was killed.
"""

import fcntl
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from prometheus_client import generate_latest, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

FILE_BYTES = 1 << 16  # of a new file of prometheus-client
ENTRY_BYTES = 28  # of a series, at most, besides its key: length, padding, value and time
RETRY_S = 60.0
"""Seconds in which a file tries to get no further space after the disk was full."""
_SUMMED = ("counter", "histogram")


class SolidFile(MmapedDict):
    """A file of values without holes. Raises OSError if the disk has no room when it is made or grows."""

    def __init__(self, filename: str) -> None:
        with Path(filename).open("ab") as file:  # open until the end: `_is_open` asks for it
            _reserve(file.fileno(), FILE_BYTES)
            super().__init__(filename)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + ENTRY_BYTES > self._capacity:
            _reserve(self._f.fileno(), 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


class LenientFile(SolidFile):
    """A file of values that leaves out a series for which the disk has no room.

    prometheus-client keeps each value in memory, too. So no count is lost once there is room again.
    """

    def __init__(self, filename: str) -> None:
        self._fname = filename
        self._f: Any = None
        self._positions: dict[str, int] = {}
        self._retry_at = 0.0

    def read_value(self, key: str) -> tuple[float, float]:
        """Return a series' value and time; zeros if it is new, or if the file has no room for it."""
        if not self._holds(key):
            return 0.0, 0.0
        value_and_time: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        return value_and_time

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set a series' value and time, or do nothing if the file has no room for it."""
        if key in self._positions or self._holds(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _holds(self, key: str) -> bool:
        """Return whether the file has this series, after an attempt to add it."""
        if key not in self._positions and time.monotonic() >= self._retry_at:
            try:
                if self._f is None:
                    super().__init__(self._fname)
                if key not in self._positions:
                    self._init_value(key)
            except OSError:
                self._retry_at = time.monotonic() + RETRY_S
        return key in self._positions


values.MmapedDict = LenientFile  # type: ignore[attr-defined,assignment]


def render(directory: Path) -> bytes:
    """Return the metrics of all processes that share the directory, but no gauges of those that ended."""
    with _locked(directory):
        _fold(directory)
        files = [str(file) for file in directory.glob("*.db") if file.stat().st_size]  # 0: no room for it
        metrics = list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
    return generate_latest(SimpleNamespace(collect=lambda: metrics))


def fold(directory: Path) -> None:
    """Add up the files of processes that ended, because some nodes are never scraped."""
    with _locked(directory):
        _fold(directory)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time read or fold. The system releases the lock if its holder dies."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fold(directory: Path) -> None:
    """Move the counts of processes that ended into one file per kind, and remove their gauges.

    A kill at any point leaves every count in exactly one place: the new sums count once they have the name of
    the old ones. Until then, files that are in them are renamed, and get their names back if it was never
    finished; after it they are removed.
    """
    for kind in _SUMMED:
        unfinished = directory / f"{kind}.sums"
        for file in directory.glob(f"{kind}_*.added"):
            if unfinished.exists():
                file.rename(file.with_suffix(".db"))
            else:
                file.unlink()
        unfinished.unlink(missing_ok=True)
    ended = _of_ended_processes(directory)
    for file in ended["gauge"]:
        file.unlink()
    for kind in _SUMMED:
        if ended[kind]:
            with suppress(OSError):  # the disk is full: they stay, and count, until there is room
                _add_up(ended[kind], directory / f"{kind}_ended.db", directory / f"{kind}.sums")


def _of_ended_processes(directory: Path) -> defaultdict[str, list[Path]]:
    """Return the files of processes that ended, by kind."""
    files_of = cache(_files_of)
    ended = defaultdict[str, list[Path]](list)
    for file in directory.resolve().glob("*.db"):
        owner = file.stem.rpartition("_")[2]
        with suppress(psutil.AccessDenied):  # another user's process
            if owner.isdigit() and str(file) not in files_of(int(owner)):
                ended[file.name.partition("_")[0]].append(file)
    return ended


def _files_of(pid: int) -> set[str]:
    """Return the files that a process has open. In a container, process ids come again after a restart."""
    try:
        return {opened.path for opened in psutil.Process(pid).open_files()}
    except psutil.NoSuchProcess:
        return set()


def _add_up(files: Sequence[Path], sums: Path, unfinished: Path) -> None:
    """Add files to the sums, and remove them. Raises OSError, and changes nothing, if the disk is full."""
    totals: defaultdict[str, float] = defaultdict(float)
    for file in [*files, sums]:
        if file.exists() and file.stat().st_size:
            for key, value, _, _ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
                totals[key] += value
    try:
        with closing(SolidFile(str(unfinished))) as written:
            for key, total in totals.items():
                written.write_value(key, total, 0.0)  # type: ignore[no-untyped-call]
    except OSError:
        unfinished.unlink()
        raise
    added = [file.rename(file.with_suffix(".added")) for file in files]
    unfinished.replace(sums)
    for file in added:
        file.unlink()


def _reserve(descriptor: int, size: int) -> None:
    """Give a file at least this size, and disk space for all of it. Raises OSError if there is none."""
    if sys.platform.startswith("linux"):  # macOS has no such call
        os.posix_fallocate(descriptor, 0, size)
