"""Puts the parts of a job together under the output's name. A run that is stopped here can be repeated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from models.errors import ModelError
from service.files.parts import OLD, WHOLE, Part, Parts
from service.files.storage import BUFFER_BYTES, Disk, storage_of
from service.files.writing import assemble

if TYPE_CHECKING:
    from service.files.job import Job

SUCCESS = "_SUCCESS"
"""The file that says that a directory in an object store is complete."""


class Assembly:
    """The output of a job, from its parts to its name.

    On disk, the whole output is made among the parts; then the mark is set, and the output gets its name by a
    rename. So it is finished if there is a mark and the draft among the parts is gone. An object store cannot
    rename a directory, so there the mark is set before the files are written, and `_SUCCESS` comes last.
    """

    def __init__(self, job: Job, parts: Parts) -> None:
        self._job = job
        self._parts = parts
        self._storage = storage_of(job.output, parts.check_owner)
        self._on_disk = isinstance(self._storage, Disk)
        self._whole = parts.path(WHOLE)
        self._success = f"{job.output}/{SUCCESS}"

    def check(self) -> None:
        """Raise ModelError if the output's name can never be given to what this job makes."""
        output = self._job.output
        if not self._job.is_directory and self._storage.is_directory(output):
            raise ModelError(
                f"{output} is a directory; a single file is scored into a file, such as {output}/scored.csv"
            )
        if self._on_disk and os.path.ismount(output):
            raise ModelError(
                f"{output} is a mount point, which cannot be replaced; choose a name in it, such as "
                f"{output}/scored"
            )

    def exists(self) -> bool:
        """Return whether there is an output, from this job or another one."""
        return self._storage.stat(self._job.output) is not None or bool(self._storage.files(self._job.output))

    def is_own(self) -> bool:
        """Return whether an output that exists is from an earlier run of the job that the parts belong to."""
        return self._parts.mark() is not None and not (self._on_disk and self._is_there(self._whole))

    def finished(self) -> tuple[int, int] | None:
        """Return the rows and rejects of an output that is complete; None if it is not."""
        mark = self._parts.mark()
        if mark is None:
            return None
        if self._on_disk:
            complete = self._is_there(self._job.output) and not self._is_there(self._whole)
        else:  # a single file is written once more, which gives the same bytes
            complete = self._job.is_directory and self._storage.stat(self._success) is not None
        rows, rejects = json.loads(mark)
        return (rows, rejects) if complete else None

    def make(self, kept: Mapping[tuple[int, int], Part]) -> None:
        """Write the file of rejects, then the output. kept: all parts by file and window."""
        in_order = [kept[key] for key in sorted(kept)]
        if self._on_disk:
            self._make_on_disk(in_order)
        else:
            self._make_in_store(in_order)

    def _make_on_disk(self, in_order: list[Part]) -> None:
        job, storage, parts = self._job, self._storage, self._parts
        if parts.mark() is None or not self._is_there(self._whole):
            parts.remove_mark()
            storage.remove(self._whole)
            self._write_rejects(in_order)
            self._write_files(in_order, self._whole)
            parts.set_mark(_counts(in_order))
        if job.is_directory and self._is_there(job.output):
            old = parts.path(OLD)  # is removed with the parts
            storage.remove(old)
            storage.move(job.output, old)
        storage.move(self._whole, job.output)

    def _make_in_store(self, in_order: list[Part]) -> None:
        job, storage = self._job, self._storage
        if job.is_directory:
            storage.remove(self._success)
        self._parts.set_mark(_counts(in_order))
        if job.is_directory:
            storage.remove(job.output)
        self._write_rejects(in_order)
        self._write_files(in_order, job.output)
        if job.is_directory:
            storage.write(self._success, b"")

    def _write_rejects(self, in_order: list[Part]) -> None:
        names = [self._parts.rejects_path(part) for part in in_order if part.rejects]
        self._storage.remove(self._job.rejects_file)
        if names:
            with self._storage.create(self._job.rejects_file) as stream:
                for name in names:
                    with self._parts.storage.open(name) as part:
                        shutil.copyfileobj(part, stream, BUFFER_BYTES)

    def _write_files(self, in_order: list[Part], output: str) -> None:
        """Write the output under the name `output`."""
        for file in self._job.files:
            names = [self._parts.part_path(part) for part in in_order if part.file == file.number]
            target = output + file.output.removeprefix(self._job.output)
            self._storage.make_directory(target.rpartition("/")[0] or ".")
            assemble(self._parts.storage, names, target, file.format, into=self._storage)

    def _is_there(self, name: str) -> bool:
        return self._storage.stat(name) is not None or self._storage.is_directory(name)


def _counts(parts: list[Part]) -> str:
    """Return the text of a mark: how many rows and rejects there are."""
    return json.dumps([sum(part.rows for part in parts), sum(part.rejects for part in parts)])
