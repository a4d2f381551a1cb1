"""The unfinished output of a job: one file for each scored window, beside the name of the output."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelError
from service.bulk.storage import Disk, Storage, storage_of

PLAN = "plan.json"
MARK = "complete"
_PART = re.compile(r"(\d{6})-(\d{8})-(\d+)-(\d+)\.part$")
_END = re.compile(r"(\d{6})-(\d{8})\.end$")


class Part(NamedTuple):
    """A window that is kept: its file and number, its rows and how many were set aside."""

    file: int
    window: int
    rows: int
    rejects: int

    @property
    def stem(self) -> str:
        """Return the beginning of its files' names."""
        return f"{self.file:06}-{self.window:08}"

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.stem}-{self.rows}-{self.rejects}.part"


class Parts:
    """The directory of a job's parts.

    A part's file gets its name when it is whole, after that of its rejects. So a part that is there is done.
    """

    def __init__(self, output: str) -> None:
        self.directory = output.rstrip("/") + ".parts"
        self.storage: Storage = storage_of(self.directory)

    def path(self, name: str) -> str:
        """Return the whole name of a file in the directory."""
        return f"{self.directory}/{name}"

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Note the plan, or check that the parts that are there are of the same plan.

        Raises ModelError, which says what differs, if they are of another plan.
        """
        path = self.path(PLAN)
        if self.storage.stat(path) is None:
            self.clear()
            self.storage.make_directory(self.directory)
            self.storage.write(path, json.dumps(plan, indent=1).encode())
            return
        with self.storage.open(path) as stream:
            before = json.loads(stream.read())
        for name in before | dict(plan):
            if before.get(name) != plan.get(name):
                raise ModelError(
                    f"{self.directory} holds the parts of a run with another {name} "
                    f"({_short(before.get(name))}, now {_short(plan.get(name))}); repeat that run, or start "
                    "over with --overwrite"
                )

    def holds(self, plan: Mapping[str, Any]) -> bool:
        """Return whether the parts are there, and of this plan."""
        path = self.path(PLAN)
        if self.storage.stat(path) is None:
            return False
        with self.storage.open(path) as stream:
            return bool(json.loads(stream.read()) == plan)

    def set_mark(self, text: str) -> None:
        """Note that the output is being put together. text: what `mark` returns."""
        self.storage.write(self.path(MARK), text.encode())

    def mark(self) -> str | None:
        """Return what `set_mark` noted; None if it noted nothing."""
        if self.storage.stat(self.path(MARK)) is None:
            return None
        with self.storage.open(self.path(MARK)) as stream:
            return stream.read().decode()

    def remove_mark(self) -> None:
        """Forget what `set_mark` noted."""
        self.storage.remove(self.path(MARK))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this machine away during the block; raise ModelError if one is there.

        On a disk, the directory is made, and removed again if it stays empty.
        """
        if not isinstance(self.storage, Disk):
            yield
            return
        descriptor = self._lock()
        try:
            yield
        finally:
            with suppress(OSError):
                Path(self.directory).rmdir()
            os.close(descriptor)

    def _lock(self) -> int:
        """Return the descriptor of the locked directory."""
        while True:
            self.storage.make_directory(self.directory)
            descriptor = os.open(self.directory, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise ModelError(f"{self.directory}: another process is writing this output") from None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), Path(self.directory).stat()):
                    return descriptor
            os.close(descriptor)  # the process that had the lock has removed this directory

    def done(self) -> tuple[dict[tuple[int, int], Part], dict[int, int]]:
        """Return the parts by file and window, and how many windows each file has that is read to its end."""
        parts: dict[tuple[int, int], Part] = {}
        ends: dict[int, int] = {}
        for name in self.storage.files(self.directory):
            if match := _PART.search(name):
                part = Part(*map(int, match.groups()))
                parts[part.file, part.window] = part
            elif match := _END.search(name):
                ends[int(match[1])] = int(match[2])
        return parts, ends

    def keep(self, part: Part, data: bytes, rejects: bytes) -> None:
        """Write a part and its rejects."""
        if rejects:
            self.storage.write(self.path(part.stem + ".rejects"), rejects)
        self.storage.write(self.path(part.name), data)

    def end(self, file: int, windows: int) -> None:
        """Note how many windows a file has."""
        self.storage.write(self.path(f"{file:06}-{windows:08}.end"), b"")

    def clear(self) -> None:
        """Remove all that is in the directory, the plan first: parts without a plan are nobody's."""
        self.storage.remove(self.path(PLAN))
        if isinstance(self.storage, Disk):  # the directory stays, because this process has locked it
            for path in Path(self.directory).iterdir():
                self.storage.remove(str(path))
        else:
            self.storage.remove(self.directory)

    def remove(self) -> None:
        """Remove the directory of a job that is finished; on a disk, plan and mark go last, which say so."""
        if isinstance(self.storage, Disk):
            for path in Path(self.directory).iterdir():
                if path.name not in (PLAN, MARK):
                    self.storage.remove(str(path))
        self.storage.remove(self.directory)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
