"""The unfinished output of a job: one file for each scored window, beside the name of the output."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from models.errors import ModelError
from service.files.storage import UNFINISHED, Storage

PLAN, MARK, OWNER = "plan.json", "complete", "owner"
_PART = re.compile(r"(\d{6})-(\d{8})-(\d+)-(\d+)\.part")
_OURS = re.compile(rf"{PLAN}|{MARK}|{OWNER}|[0-9a-f]{{12}}-[\d-]+\.(part|rejects)")
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


class Parts:
    """The directory of a job's parts.

    A part's file gets its name when it is whole, after that of its rejects. So a part that is there is done.
    Its name begins with the digest of the plan, so parts of different plans never mix.

    The directory belongs to the run that began last, whose id is in a file of it. Any other run that still
    goes on, perhaps on another machine, gets an error before it changes anything there or in the output.

    plan: what the parts depend on. storage: where output and parts are; it looks for the owner from now on.
    """

    def __init__(self, output: str, plan: Mapping[str, Any]) -> None:
        self.plan: dict[str, Any] = json.loads(json.dumps(plan))  # as it is read again
        self.directory = output.rstrip("/") + ".parts"
        self.storage = Storage(output)
        self.storage.check = self.check_owner
        self._run: str | None = None
        self._key = hashlib.sha256(json.dumps(self.plan, sort_keys=True).encode()).hexdigest()[:12]

    def path(self, name: str) -> str:
        """Return the whole name of a file in the directory."""
        return f"{self.directory}/{name}"

    def part_path(self, part: Part) -> str:
        """Return the whole name of a part's file."""
        return self.path(f"{self._key}-{part.stem}-{part.rows}-{part.rejects}.part")

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
        run = uuid.uuid4().hex
        self.write(OWNER, run)
        self._run = run
        if before != self.plan:
            self.write(PLAN, json.dumps(self.plan, indent=1))

    def holds_plan(self) -> bool:
        """Return whether the parts are there, and of this plan."""
        return self._plan_there() == self.plan

    def check_owner(self) -> None:
        """Raise ModelError if another run has begun on the output since this one did."""
        if self._run is not None and self.read(OWNER) != self._run:
            raise ModelError(
                f"{self.directory}: another run of this output has begun or has ended meanwhile, "
                "so this one stops; the output is the other run's"
            )

    def _plan_there(self) -> dict[str, Any] | None:
        text = self.read(PLAN)
        return None if text is None else dict(json.loads(text))

    def read(self, name: str) -> str | None:
        """Return the text of a file of the directory; None if there is no such file."""
        with suppress(FileNotFoundError), self.storage.open(self.path(name)) as stream:
            return bytes(stream.read()).decode()
        return None

    def write(self, name: str, text: str) -> None:
        """Write a file of the directory."""
        with self.storage.create(self.path(name)) as stream:
            stream.write(text.encode())

    def _check_plan(self, before: dict[str, Any]) -> None:
        for name in before | self.plan:
            if before.get(name) != self.plan.get(name):
                raise ModelError(
                    f"{self.directory} holds the parts of a run with another {name}; repeat that run, "
                    "or start over with --overwrite"
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

    def done(self) -> dict[tuple[int, int], Part]:
        """Return the parts by file and window."""
        parts: dict[tuple[int, int], Part] = {}
        own = self.path(self._key + "-")
        for path in self.storage.files(self.directory):
            if match := _PART.fullmatch(path.removeprefix(own)):
                part = Part(*map(int, match.groups()))
                parts[part.file, part.window] = part
        return parts

    def keep(self, part: Part, data: bytes, rejects: bytes) -> None:
        """Write a part and its rejects."""
        for path, content in ((self.rejects_path(part), rejects), (self.part_path(part), data)):
            if content or path.endswith(".part"):
                with self.storage.create(path) as stream:
                    stream.write(content)

    def clear(self) -> None:
        """Remove the directory, the plan first: parts without a plan are nobody's."""
        self.storage.remove(self.path(PLAN))
        self.storage.remove(self.directory)
        self._run = None
