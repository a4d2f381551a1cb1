"""The unfinished output of a job: one file for each scored window, beside the name of the output."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    def begin(self, plan: Mapping[str, Any]) -> bool:
        """Make the directory, or check that the one that is there is of the same plan.

        Returns whether it was there. Raises ModelError, which says what differs, if it is of another plan.
        """
        path = self.path(PLAN)
        if self.storage.stat(path) is None:
            self.storage.make_directory(self.directory)
            self.storage.write(path, json.dumps(plan, indent=1).encode())
            return False
        with self.storage.open(path) as stream:
            before = json.loads(stream.read())
        for name in before | dict(plan):
            if before.get(name) != plan.get(name):
                raise ModelError(
                    f"{self.directory} holds the parts of a run with another {name} "
                    f"({_short(before.get(name))}, now {_short(plan.get(name))}); repeat that run, or start "
                    "over with --overwrite"
                )
        return True

    def holds(self, plan: Mapping[str, Any]) -> bool:
        """Return whether the parts are there, and of this plan."""
        path = self.path(PLAN)
        if self.storage.stat(path) is None:
            return False
        with self.storage.open(path) as stream:
            return bool(json.loads(stream.read()) == plan)

    def set_mark(self, state: str) -> None:
        """Note that the parts are all there, and what was under the output's name before."""
        self.storage.write(self.path(MARK), state.encode())

    def mark(self) -> str | None:
        """Return what `set_mark` noted; None if it noted nothing."""
        if self.storage.stat(self.path(MARK)) is None:
            return None
        with self.storage.open(self.path(MARK)) as stream:
            return stream.read().decode()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this machine away during the block; raise ModelError if one is there."""
        if not isinstance(self.storage, Disk):
            yield
            return
        descriptor = os.open(Path(self.directory), os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ModelError(f"{self.directory}: another process is writing this output") from None
            yield
        finally:
            os.close(descriptor)

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

    def remove(self) -> None:
        """Remove the directory."""
        self.storage.remove(self.directory)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
