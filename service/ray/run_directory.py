"""The directory of one run under /tmp, which holds Ray's files and logs, sockets and the token.

What is written while requests are served lies in memory instead (`memory`): anybody may fill /tmp, and a
replica whose mapped file finds no room there is killed by SIGBUS.

Later runs remove the directories of runs that have ended. A run holds a lock (flock) on a file in its
directory while its process lives. The kernel releases the lock when the process ends for any reason, and
a later process with the same pid does not hold it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from headroom.service.ray import mps

PARENT = Path("/tmp")  # short, because the paths of Unix sockets may have at most 107 characters
PREFIX = "headroom-"
MEMORY = Path("/dev/shm")  # absent on other systems than Linux
LOCK = "run.lock"
FAILED = "failed"


class RunDirectory:
    """A new directory for this process. Creating one first removes those of this user's ended runs.

    started_in: the working directory of the start.
    path: the directory; only this user may read it. `memory(path)` is a link to one of the same name under
        MEMORY, or a plain directory on a system without MEMORY.
    """

    def __init__(self) -> None:
        sweep()
        self.started_in = Path.cwd()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        if os.access(MEMORY, os.W_OK):
            (MEMORY / self.path.name).mkdir(mode=0o700)
            memory(self.path).symlink_to(MEMORY / self.path.name)
        else:
            memory(self.path).mkdir()
        # Lock before the file has its name: a directory without a lock file is never swept.
        unnamed = self.path / f"{LOCK}.new"
        self._lock = unnamed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    @property
    def logs(self) -> Path:
        """The directory of Ray's logs, once it has started."""
        return self.path / "ray" / "session_latest" / "logs"

    def remove(self) -> None:
        """End the run and remove its directory."""
        _remove(self.path)
        self._lock.close()

    def keep_logs(self) -> None:
        """End a failed run and keep its directory until a later run fails as well."""
        (self.path / FAILED).touch()
        _free_memory(self.path)
        self._lock.close()


def memory(run: Path) -> Path:
    """Return the directory of a run for what is written while requests are served."""
    return run / "memory"


def sweep() -> None:
    """Remove the directories of this user's ended runs, but keep the latest one that failed."""
    with contextlib.ExitStack() as locks:
        ended = []
        for directory in PARENT.glob(f"{PREFIX}*"):
            lock = _lock_of_ended(directory)
            if lock is not None:
                locks.enter_context(lock)
                ended.append(directory)
        failed = [directory for directory in ended if (directory / FAILED).exists()]
        last = max(failed, key=lambda directory: (directory / FAILED).stat().st_mtime, default=None)
        for directory in ended:
            mps.quit_daemons_of(directory)
            if directory != last:
                _remove(directory)


def _lock_of_ended(directory: Path) -> IO[str] | None:
    """Return the lock of an ended run; None if the run is alive or the directory is not ours."""
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


def _free_memory(run: Path) -> None:
    if memory(run).is_symlink():
        shutil.rmtree(MEMORY / run.name, ignore_errors=True)
        memory(run).unlink()


def _remove(directory: Path) -> None:
    """Remove the directory, the lock file last, so that the next sweep can remove what remains now."""
    with contextlib.suppress(OSError):
        _free_memory(directory)
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
        if [entry.name for entry in directory.iterdir()] == [LOCK]:
            shutil.rmtree(directory)
