"""The directory of one run under /tmp: Ray's files and logs, sockets, the token. Swept when its run is gone.

A run holds a lock (flock) on a file in its directory for as long as its process lives; the kernel takes it
back however the process ends, and a later process with the same id does not have it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

PARENT = Path("/tmp")  # short: Unix sockets go into a run's directory, and their paths have 107 characters
PREFIX = "headroom-"
LOCK = "run.lock"
FAILED = "failed"


class RunDirectory:
    """A fresh directory of this process's own. Those of this user's runs that are gone are removed first.

    path: the directory, for this user only.
    """

    def __init__(self, parent: Path = PARENT) -> None:
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Locked before it has its name: a directory without a lock file is never swept.
        unnamed = self.path / f"{LOCK}.new"
        self._lock = unnamed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """End the run: nothing is left of it."""
        _remove(self.path)
        self._lock.close()

    def keep_logs(self) -> None:
        """End a run that failed: its directory stays until a later run has failed as well."""
        (self.path / FAILED).touch()
        self._lock.close()


def sweep(parent: Path = PARENT) -> None:
    """Remove the directories that this user's ended runs left; the logs of the last that failed stay."""
    with contextlib.ExitStack() as locks:
        ended = []
        for directory in parent.glob(f"{PREFIX}*"):
            lock = _lock_of_ended(directory)
            if lock is not None:
                locks.enter_context(lock)
                ended.append(directory)
        failed = [directory for directory in ended if (directory / FAILED).exists()]
        last = max(failed, key=lambda directory: (directory / FAILED).stat().st_mtime, default=None)
        for directory in ended:
            if directory != last:
                _remove(directory)


def _lock_of_ended(directory: Path) -> IO[str] | None:
    """The lock of a run that is gone; None where it is not, or where the directory is not ours."""
    with contextlib.suppress(OSError):
        about = directory.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
            lock = (directory / LOCK).open("r+")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
            else:
                return lock
    return None


def _remove(directory: Path) -> None:
    """Remove all of it, the lock file last: what cannot be removed now is left to the next sweep."""
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
        if [entry.name for entry in directory.iterdir()] == [LOCK]:
            shutil.rmtree(directory)
