"""The unfinished output of a job: one file for each scored window, in `OUTPUT.parts/`."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from headroom.models.errors import ModelError
from headroom.service.files.storage import UNFINISHED, Stat, Storage

PLAN = "plan.json"
_PART = re.compile(r"(\d{8})-(\d+)-(\d+)\.part")
_OUR_FILES = re.compile(rf"({PLAN}|[0-9a-f]{{12}}-[\d-]+\.(part|rejects))((\.[0-9a-f]+)?{UNFINISHED})?")
"""The names of everything that runs put into the directory."""


class Part(NamedTuple):
    """A window that is kept: its number, its rows and how many were set aside."""

    window: int
    rows: int
    rejects: int


class Parts:
    """The directory of a job's parts.

    A part's file gets its name when it is whole, after that of its rejects. So a part that is there is done.
    Its name begins with the digest of the plan, so parts of different plans never mix.

    plan: what the parts depend on. storage: where output and parts are.
    """

    def __init__(self, output: str, plan: Mapping[str, Any]) -> None:
        self.plan: dict[str, Any] = json.loads(json.dumps(plan))  # as it is read again
        self.output = output
        self.directory = output.rstrip("/") + ".parts"
        self._note = f"{self.directory}.published"
        self.storage = Storage(output)
        self._key = hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()[:12]

    def path(self, name: str) -> str:
        """Return the whole name of a file in the directory."""
        return f"{self.directory}/{name}"

    def part_path(self, part: Part) -> str:
        """Return the whole name of a part's file."""
        return self.path(f"{self._key}-{part.window:08}-{part.rows}-{part.rejects}.part")

    def rejects_path(self, part: Part) -> str:
        """Return the whole name of the file of a part's rejects."""
        return self.path(f"{self._key}-{part.window:08}.rejects")

    def take_over(self, *, overwrite: bool) -> None:
        """Take the directory over from earlier runs, and keep their parts if they are of the same plan.

        overwrite: remove the parts of another plan. Without it, they are a ModelError that says what differs;
        files that no run has written are an error.
        """
        self.storage.remove_drafts(self.output)
        previous = self._stored_plan()
        if previous is None:
            self._check_names()
        elif not overwrite:
            self._check_plan(previous)
        if previous != self.plan:
            self.clear()
            self._write(self.path(PLAN), json.dumps(self.plan, indent=1).encode())

    def holds_plan(self) -> bool:
        """Return whether the parts are there, and of this plan."""
        return self._stored_plan() == self.plan

    def _stored_plan(self) -> dict[str, Any] | None:
        with suppress(FileNotFoundError), self.storage.open(self.path(PLAN)) as stream:
            return dict(json.loads(stream.read()))
        return None

    def _check_plan(self, previous: dict[str, Any]) -> None:
        for name in previous | self.plan:
            if previous.get(name) != self.plan.get(name):
                raise ModelError(
                    f"{self.directory} holds the parts of a run with another {name}; repeat that run, "
                    "or start over with --overwrite"
                )

    def _check_names(self) -> None:
        """Raise ModelError if the directory holds a file that no run has put there."""
        for name in self.storage.files(self.directory):
            top = name.removeprefix(self.directory + "/").split("/")[0]
            if not _OUR_FILES.fullmatch(top):
                raise ModelError(
                    f"{name} is in the way: {self.directory} is where unfinished scores are kept; "
                    "move it away, or choose another --output"
                )

    def _write(self, path: str, content: bytes) -> None:
        with self.storage.create(path) as stream:
            stream.write(content)

    def done(self) -> dict[int, Part]:
        """Return the parts by window."""
        parts: dict[int, Part] = {}
        prefix = self.path(f"{self._key}-")
        for path in self.storage.files(self.directory):
            if match := _PART.fullmatch(path.removeprefix(prefix)):
                part = Part._make(map(int, match.groups()))
                parts[part.window] = part
        return parts

    def keep(self, part: Part, data: bytes, rejects: bytes) -> None:
        """Write a part, after its rejects if there are any."""
        if rejects:
            self._write(self.rejects_path(part), rejects)
        self._write(self.part_path(part), data)

    def note_published(self, rows: int, rejects: int) -> None:
        """Note that the output has its name, before the parts go: the same command then finds the job done.

        rows: of the output. rejects: the rows that were set aside.
        """
        note = [self._key, self.storage.stat(self.output), rows, rejects]
        self._write(self._note, json.dumps(note).encode())

    def published(self) -> tuple[int, int] | None:
        """Return the rows and rejects of an output that is published, while its parts are being removed."""
        with suppress(FileNotFoundError), self.storage.open(self._note) as stream:
            key, stat, rows, rejects = json.loads(stream.read())
            if key == self._key and Stat(*stat) == self.storage.stat(self.output):
                return rows, rejects
        return None

    def clear(self) -> None:
        """Remove plan, parts and note, in this order: a run that finds no plan clears what is left."""
        self.storage.remove(self.path(PLAN))
        self.storage.remove(self.directory)
        self.storage.remove(self._note)
