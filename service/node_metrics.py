"""The metric files of one node: prometheus-client's, for every process that shares the directory.

A process that died leaves its counts behind, and they must go on counting. So that its files do not stay as
well, they are added up into one file per type:

1. what the dead wrote moves into the folder with the highest number, `dead-7`;
2. `dead-8` is made of the sums over that folder, under another name, and then renamed: from that moment on
   its numbers count, and those of `dead-7` do not;
3. `dead-7` is removed.

A kill at any point leaves every count in exactly one place. A lock on the directory keeps processes that fold
or read at the same time apart; the system releases it with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_COUNTING = ("counter", "histogram")
_FOLDER = "dead-"


class NodeMetrics(Collector):
    """What all processes of a node have counted, the dead ones too, and the gauges of those alive."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with self._locked():
            self._fold()  # for nodes that nobody scrapes

    def collect(self) -> Iterable[Metric]:
        """One consistent look at all files, after what the dead left was added up."""
        with self._locked():
            self._fold()
            files = [*self._directory.glob("*.db"), *self._current().glob("*.db")]
            written = [str(file) for file in files if file.stat().st_size]  # a process may be starting
            return list(MultiProcessCollector.merge(written))  # type: ignore[no-untyped-call]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _current(self) -> Path:
        """The folder that counts; it need not exist. Any other is what a kill left of an earlier one."""
        folders = self._directory.glob(f"{_FOLDER}*")
        number = max((int(folder.name.removeprefix(_FOLDER)) for folder in folders), default=0)
        return self._directory / f"{_FOLDER}{number}"

    def _fold(self) -> None:
        """Add what the dead have counted to what is kept of the dead before them; remove their gauges."""
        self._add_up()  # what a kill left undone: with the same process id, a file would go over another
        current = self._current()
        for file in self._directory.glob("*.db"):
            pid = file.stem.rpartition("_")[2]
            if not pid.isdigit() or _is_alive(int(pid)):
                continue
            if file.name.startswith(_COUNTING) and file.stat().st_size:
                current.mkdir(exist_ok=True)
                file.rename(current / file.name)
            else:
                file.unlink()
        self._add_up()

    def _add_up(self) -> None:
        """Leave one folder with one file for each type."""
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


def _write_sums(files: Iterable[Path], out: Path) -> None:
    sums: defaultdict[str, float] = defaultdict(float)
    for file in files:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
            sums[key] += value
    with closing(MmapedDict(str(out))) as kept:  # type: ignore[no-untyped-call]
        for key, value in sums.items():
            kept.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
