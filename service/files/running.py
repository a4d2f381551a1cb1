"""Runs a job: reads and scores what is not kept yet, keeps it, and gives the output its name at the end."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from models.errors import ModelError
from service.files.job import REJECTS, Job
from service.files.parts import MARK, Part, Parts
from service.files.reading import Window
from service.files.storage import BUFFER_BYTES
from service.files.writing import assemble

SUCCESS = "_SUCCESS"
"""The file that says that a directory is complete."""

Progress = Callable[[float, int, int], None]
"""Takes how much is done, from 0 to 1, how many rows that is, and how many of them an earlier run did."""


class Encoded(NamedTuple):
    """A scored window as it is written: its part and its rejects, and the rows of both."""

    data: bytes
    rejects: bytes
    rows: int
    set_aside: int


class Workers(Protocol):
    """Workers that score windows. ahead: how many windows it takes at once."""

    ahead: int

    def submit(self, window: Window) -> Any:
        """Begin with a window; called in a thread of its own. Returns what `finish` takes."""

    def finish(self, pending: Any) -> Encoded:
        """Wait for a window's scores."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished job: the rows that were scored, those that were set aside, and the file that holds these."""

    rows: int
    rejects: int
    rejects_file: str


def run(
    job: Job, workers: Callable[[], AbstractContextManager[Workers]], report: Progress, *, overwrite: bool
) -> Summary:
    """Score what is not done yet, and put the output together.

    Raises ModelError if the output exists or cannot be written, or the input cannot be read.
    """
    parts = Parts(job.output, job.plan())
    storage = parts.storage
    with _writing(parts.directory, kept=False):
        if not job.is_directory and storage.is_directory(job.output):
            raise ModelError(f"{job.output} is a directory; a single file is scored into a file")
        exists = storage.stat(job.output) is not None or bool(storage.files(job.output))
        if exists and not (overwrite or (parts.holds_plan() and parts.read(MARK) is not None)):
            raise ModelError(f"{job.output} exists; choose another --output, or replace it with --overwrite")
        parts.begin(afresh=overwrite)
    if parts.read(MARK) is None:
        try:
            with workers() as opened:
                _score(job, parts, opened, report)
            counts = _counts(job, parts)
        except ModelError:
            if job.changed_input() or not any(part.rows for part in parts.done().values()):
                parts.clear()  # so that another try starts afresh
            raise
        with _writing(job.output):
            parts.write(MARK, json.dumps(counts))
    rows, rejects = json.loads(parts.read(MARK) or "")
    with _writing(job.output):
        _publish(job, parts)
    with _writing(parts.directory):
        parts.clear()
    return Summary(rows, rejects, job.output + REJECTS)


@contextmanager
def _writing(what: str, *, kept: bool = True) -> Iterator[None]:
    """Turn errors of writing files into one that says what is kept."""
    try:
        yield
    except OSError as error:
        goes_on = "; what is scored is kept, and the same command goes on from there" if kept else ""
        raise ModelError(f"{what} cannot be written: {error.strerror or error}{goes_on}") from None


def _score(job: Job, parts: Parts, workers: Workers, report: Progress) -> None:
    """Keep a part for every window of the job that has none yet.

    One thread reads windows and hands them to the workers; this one writes their parts.
    """
    kept = parts.done()
    before = rows = sum(part.rows + part.rejects for part in kept.values())
    sizes = [max(file.stat.size, 1) for file in job.files]
    found = job.windows()

    def read() -> tuple[Window, Any] | None:
        for window in found:
            if (window.file, window.number) not in kept:
                return window, workers.submit(window)
        return None

    with ThreadPoolExecutor(1, "reader") as reader:
        ahead = deque(reader.submit(read) for _ in range(workers.ahead))
        try:
            while (item := ahead.popleft().result()) is not None:
                window, pending = item
                ahead.append(reader.submit(read))
                encoded = workers.finish(pending)
                part = Part(window.file, window.number, encoded.rows, encoded.set_aside)
                with _writing(parts.directory):
                    parts.keep(part, encoded.data, encoded.rejects)
                rows += part.rows + part.rejects
                done = sum(sizes[: window.file]) + window.share * sizes[window.file]
                report(done / sum(sizes), rows, before)
        finally:
            reader.shutdown(cancel_futures=True)


def _counts(job: Job, parts: Parts) -> tuple[int, int]:
    """Return the rows and rejects. Raises ModelError if the input has changed, or no row was scored."""
    if (changed := job.changed_input()) is not None:
        raise ModelError(
            f"{changed} has changed while it was scored, so nothing is written; the same command begins anew"
        )
    kept = sorted(parts.done().values())
    rows, rejects = sum(part.rows for part in kept), sum(part.rejects for part in kept)
    if not rows:
        first = next((part for part in kept if part.rejects), None)
        if first is None:
            raise ModelError(f"{' and '.join(file.name for file in job.files[:3])}: there are no pairs")
        with parts.storage.open(parts.rejects_path(first)) as stream:
            line = bytes(stream.read()).split(b"\n")[0].decode()
            raise ModelError(f"no row can be scored; the first that cannot: {line}")
    return rows, rejects


def _publish(job: Job, parts: Parts) -> None:
    """Write the file of rejects, then the output. It may be done again from the same parts.

    The files of a directory are written one by one, and `_SUCCESS` comes last.
    """
    storage, output = parts.storage, job.output
    in_order = sorted(parts.done().values())
    if job.is_directory:
        storage.remove(f"{output}/{SUCCESS}")
        storage.remove(output)
    storage.remove(output + REJECTS)
    if any(part.rejects for part in in_order):
        with storage.create(output + REJECTS) as stream:
            for part in in_order:
                if part.rejects:
                    with storage.open(parts.rejects_path(part)) as rejects:
                        shutil.copyfileobj(rejects, stream, BUFFER_BYTES)
    for file in job.files:
        names = [parts.part_path(part) for part in in_order if part.file == file.number]
        assemble(storage, names, file.output, file.target.kind)
    if job.is_directory:
        with storage.create(f"{output}/{SUCCESS}"):
            pass
