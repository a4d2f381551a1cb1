"""Collects the metrics of all processes on a node from prometheus-client's files in a shared directory.

The counts of a dead process must stay in the totals, but its files should not stay. So the files of dead
processes are added up into one file per type:

1. The files of dead processes move into the folder with the highest number, for example `dead-7`.
2. The sums over that folder are written into a folder with another name, which is then renamed to `dead-8`.
   From then on, the numbers in `dead-8` count and those in `dead-7` do not.
3. `dead-7` is removed.

A kill at any point leaves every count in exactly one place. A lock on the directory lets only one process
fold or read at a time; the system releases it if its holder dies.

prometheus-client maps sparse files, and a write into a hole of one ends the process (SIGBUS) if the disk is
full. So importing this module makes the library's values use files without holes (`LenientFile`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import Metric, values
from prometheus_client.mmap_dict import MmapedDict, _pack_two_doubles, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_COUNTING = ("counter", "histogram")
_FOLDER = "dead-"
_FILE_BYTES = 1 << 16  # a new file of prometheus-client
_ENTRY_BYTES = 28  # at most, beside the key: length, padding, value, time
RETRY_S = 60.0
"""How long a file leaves new series out after the disk was full."""


class SolidFile(MmapedDict):
    """A file of values without holes, so that a full disk raises OSError when the file is made or grows."""

    def __init__(self, filename: str) -> None:
        with Path(filename).open("ab") as file:  # open until the end: `_is_used` asks for it
            _reserve(file.fileno(), _FILE_BYTES)
            super().__init__(filename)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + _ENTRY_BYTES > self._capacity:
            _reserve(self._f.fileno(), 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


class LenientFile(SolidFile):
    """A file of values that leaves out a series for which the disk has no room.

    prometheus-client keeps each value in memory, too. So no count is lost when there is room again.
    """

    def __init__(self, filename: str) -> None:
        self._fname = filename
        self._f: Any = None
        self._m: Any = None
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
            # As in the base class, whose method costs a fifth more through super(). Every sample comes here.
            _pack_two_doubles(self._m, self._positions[key], value, timestamp)  # type: ignore[no-untyped-call]

    def _holds(self, key: str) -> bool:
        """Return whether the file has this series, after an attempt to add it."""
        if key in self._positions:
            return True
        now = time.monotonic()
        if now < self._retry_at:
            return False
        try:
            if self._m is None:
                super().__init__(self._fname)
            if key not in self._positions:
                self._init_value(key)
        except OSError:
            self._retry_at = now + RETRY_S
            return False
        return True


values.MmapedDict = LenientFile  # type: ignore[attr-defined,assignment]


class NodeMetrics(Collector):
    """Collects the counts of all processes of a node, dead ones included, and the gauges of live ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with self._locked():
            self._fold()  # also here, because some nodes are never scraped

    def collect(self) -> Iterable[Metric]:
        """Add up the files of dead processes, then return a consistent snapshot of all metrics."""
        with self._locked():
            self._fold()
            files = [*self._directory.glob("*.db"), *self._current().glob("*.db")]
            written = [str(file) for file in files if file.stat().st_size]  # empty while a process starts
            return list(MultiProcessCollector.merge(written))  # type: ignore[no-untyped-call]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _current(self) -> Path:
        """Return the folder that counts; it may not exist. Other folders remain only after a kill."""
        folders = self._directory.glob(f"{_FOLDER}*")
        number = max((int(folder.name.removeprefix(_FOLDER)) for folder in folders), default=0)
        return self._directory / f"{_FOLDER}{number}"

    def _fold(self) -> None:
        """Add the counts of dead processes to the sums, and remove their gauges."""
        dead = [file for file in self._directory.glob("*.db") if not _is_used(file)]
        counting = [file for file in dead if file.name.startswith(_COUNTING) and file.stat().st_size]
        for file in dead:
            if file not in counting:
                file.unlink()
        with suppress(OSError):  # on a full disk they stay until a later call, and count meanwhile
            self._add_up()  # finish after a kill first: a reused process id would overwrite a file
            current = self._current()
            for file in counting:
                current.mkdir(exist_ok=True)
                file.rename(current / file.name)
            self._add_up()

    def _add_up(self) -> None:
        """Reduce the folders to one, with one file per type."""
        current = self._current()
        if any(not file.stem.endswith("_dead") for file in current.glob("*.db")):
            unfinished = self._directory / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for kind in _COUNTING:
                _write_sums(current.glob(f"{kind}_*.db"), unfinished / f"{kind}_dead.db")
            number = int(current.name.removeprefix(_FOLDER)) + 1
            current = unfinished.rename(self._directory / f"{_FOLDER}{number}")
        for folder in self._directory.glob(f"{_FOLDER}*"):
            if folder != current:
                shutil.rmtree(folder)


class NodeGauge:
    """A gauge without labels, written by a process of the node that is no replica.

    A scrape shows the largest value of the node's live processes, as for a gauge in the mode `livemax`. While
    the disk is full, it may not show this one.

    Args:
        directory: the one that the node's replicas share.
        name: the full name of a gauge of the replicas.
        text: that gauge's description.
    """

    def __init__(self, directory: Path, name: str, text: str) -> None:
        self._file = LenientFile(str(directory / f"gauge_livemax_{os.getpid()}.db"))
        self._key = mmap_key(name, name, [], [], text)

    def set(self, value: float) -> None:
        """Show this value from the next scrape on, until `close` or the process's end."""
        self._file.write_value(self._key, value, time.time())

    def close(self) -> None:
        """End the gauge: scrapes show it no longer."""
        self._file.close()  # type: ignore[no-untyped-call]


def _write_sums(files: Iterable[Path], out: Path) -> None:
    sums: defaultdict[str, float] = defaultdict(float)
    for file in files:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
            sums[key] += value
    with closing(SolidFile(str(out))) as kept:
        for key, value in sums.items():
            kept.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]


def _reserve(file: int, size: int) -> None:
    """Give a file at least this size, and disk space for all of it. Raises OSError if there is none."""
    if sys.platform.startswith("linux"):  # macOS has no such call
        os.posix_fallocate(file, 0, size)


def _is_used(file: Path) -> bool:
    """Return whether the file's process has it open, or, without Linux's /proc, whether it is alive.

    In a container, the processes after a restart have the process ids of those before it.
    """
    owner = file.stem.rpartition("_")[2]
    if not owner.isdigit():
        return True
    pid = int(owner)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not sys.platform.startswith("linux") or not file.stat().st_size:  # it is being opened
        return True
    name = Path(os.path.realpath(file))
    try:
        return any(_target(opened) == name for opened in Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return True
    except OSError:  # it ended meanwhile
        return False


def _target(opened: Path) -> Path | None:
    try:
        return opened.readlink()
    except OSError:  # it was closed meanwhile
        return None
