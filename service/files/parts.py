"""The unfinished output of a job: one file for each scored window, beside the name of the output."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelError
from service.files.storage import UNFINISHED, Disk, Storage, storage_of

INPUT = "input"
"""The key of a plan that holds name, size and time of each input file."""

PLAN = "plan.json"
MARK = "complete"
OWNER = "owner"
WHOLE = "whole"
OLD = "old"
_PART = re.compile(r"(\d{6})-(\d{8})-(\d+)-(\d+)\.part")
_END = re.compile(r"(\d{6})-(\d{8})\.end")
_OURS = re.compile(rf"{PLAN}|{MARK}|{OWNER}|{WHOLE}|{OLD}|[0-9a-f]{{12}}-[\d-]+\.(part|rejects|end)")
"""The names of everything that runs put into the directory."""


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
    Its name begins with the digest of the plan, so parts of different plans never mix.

    The directory belongs to the run that began last, whose id is in a file of it. Any other run that still
    goes on, perhaps on another machine, gets an error before it changes anything there or in the output.

    plan: what the parts depend on. run: the id of a run that has begun; None if this one has yet to begin.
    """

    def __init__(self, output: str, plan: Mapping[str, Any], run: str | None = None) -> None:
        self.plan = dict(plan)
        self.run = run
        self.directory = output.rstrip("/") + ".parts"
        self.storage: Storage = storage_of(self.directory, self.check_owner)
        self._key = hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()[:12]

    def path(self, name: str) -> str:
        """Return the whole name of a file in the directory."""
        return f"{self.directory}/{name}"

    def part_path(self, part: Part) -> str:
        """Return the whole name of a part's file."""
        return self.path(f"{self._key}-{part.name}")

    def rejects_path(self, part: Part) -> str:
        """Return the whole name of the file of a part's rejects."""
        return self.path(f"{self._key}-{part.stem}.rejects")

    def begin(self, *, afresh: bool = False) -> None:
        """Take the directory over from earlier runs, and keep their parts if they are of the same plan.

        afresh: remove the parts of another plan. Raises ModelError, which says what differs, if they are of
        another plan and stay, or if the directory holds files of somebody else.
        """
        before = self._plan_there()
        if before is None:
            self._check_names()
        elif not afresh:
            self._check_plan(before)
        if before != self.plan:
            self.clear()
        self.storage.make_directory(self.directory)
        run = uuid.uuid4().hex
        self.storage.write(self.path(OWNER), run.encode())
        self.run = run
        if before != self.plan:
            self.storage.write(self.path(PLAN), json.dumps(self.plan, indent=1).encode())

    def holds_plan(self) -> bool:
        """Return whether the parts are there, and of this plan."""
        return self._plan_there() == self.plan

    def check_owner(self) -> None:
        """Raise ModelError if another run has begun on the output since this one did."""
        if self.run is not None and self._read(OWNER) != self.run:
            raise ModelError(
                f"{self.directory}: another run of this output has begun or has ended meanwhile, "
                "so this one stops; the output is the other run's"
            )

    def _plan_there(self) -> dict[str, Any] | None:
        text = self._read(PLAN)
        return None if text is None else dict(json.loads(text))

    def _read(self, name: str) -> str | None:
        """Return the text of a file of the directory; None if there is no such file."""
        with suppress(FileNotFoundError), self.storage.open(self.path(name)) as stream:
            return stream.read().decode()
        return None

    def _check_plan(self, before: dict[str, Any]) -> None:
        for name in before | self.plan:
            if before.get(name) != self.plan.get(name):
                difference = _difference(name, before.get(name), self.plan.get(name))
                raise ModelError(
                    f"{self.directory} holds the parts of {difference}, or start over with --overwrite"
                )

    def _check_names(self) -> None:
        """Raise ModelError if the directory holds a file that no run has put there."""
        for name in self.storage.files(self.directory):
            top = name.removeprefix(self.directory + "/").split("/")[0]
            if not _OURS.fullmatch(top.removesuffix(UNFINISHED)):
                raise ModelError(
                    f"{name} is in the way: {self.directory} is where unfinished scores are kept; "
                    "move it away, or choose another --output"
                )

    def set_mark(self, text: str) -> None:
        """Note that the output is being put together. text: what `mark` returns."""
        self.storage.write(self.path(MARK), text.encode())

    def mark(self) -> str | None:
        """Return what `set_mark` noted; None if it noted nothing."""
        return self._read(MARK)

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
        own = self.path(self._key + "-")
        for path in self.storage.files(self.directory):
            name = path.removeprefix(own)  # is whole, and matches nothing, if it begins otherwise
            if match := _PART.fullmatch(name):
                part = Part(*map(int, match.groups()))
                parts[part.file, part.window] = part
            elif match := _END.fullmatch(name):
                ends[int(match[1])] = int(match[2])
        return parts, ends

    def keep(self, part: Part, data: bytes, rejects: bytes) -> None:
        """Write a part and its rejects."""
        if rejects:
            self.storage.write(self.rejects_path(part), rejects)
        self.storage.write(self.part_path(part), data)

    def end(self, file: int, windows: int) -> None:
        """Note how many windows a file has."""
        self.storage.write(self.path(f"{self._key}-{file:06}-{windows:08}.end"), b"")

    def clear(self) -> None:
        """Remove all that is in the directory, the plan first and the owner last.

        Parts without a plan are nobody's.
        """
        self.storage.remove(self.path(PLAN))
        if isinstance(self.storage, Disk):  # the directory stays, because this process has locked it
            for path in Path(self.directory).iterdir():
                if path.name != OWNER:
                    self.storage.remove(str(path))
            self.storage.remove(self.path(OWNER))
        else:
            self.storage.remove(self.directory)

    def remove(self) -> None:
        """Remove the directory of a job that is finished; on a disk, plan and mark go last, which say so."""
        if isinstance(self.storage, Disk):
            for path in Path(self.directory).iterdir():
                if path.name not in (PLAN, MARK, OWNER):
                    self.storage.remove(str(path))
        self.storage.remove(self.directory)


def _difference(name: str, before: Any, now: Any) -> str:
    """Say which run the parts are of, and what its user can do. name: the entry of the plan that differs."""
    if name != INPUT:
        return f"a run with another {name} ({_short(before)}, now {_short(now)}); repeat that run"
    stats = {file: stat for file, *stat in before or ()}
    if [file for file, *_ in now or ()] != list(stats):
        return "a run with other input files; repeat that run"
    changed = next(file for file, *stat in now if stat != stats[file])
    return f"an unfinished run, but {changed} has changed since (its size or its time of change); restore it"


def _short(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(str(part) for part in value if part != "")
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
