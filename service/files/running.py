"""Runs a job: reads and scores what is not kept yet, keeps it, and gives the output its name at the end."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headroom.models.errors import ModelError
from headroom.models.rows import BUFFER_BYTES
from headroom.service.files.job import REJECTS, Job
from headroom.service.files.parts import Part, Parts
from headroom.service.files.reading import Window
from headroom.service.files.writing import assemble

if TYPE_CHECKING:
    from headroom.service.files.scoring import WindowScorer

ReportProgress = Callable[[float, int, int], None]
"""Takes (share done, rows done, rows done by an earlier run)."""

WINDOWS_IN_FLIGHT = 2
"""One window is scored, and another one is tokenized meanwhile."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished job: the rows that were scored, those that were set aside, and the file of these, if any."""

    rows: int
    rejects: int
    rejects_file: str | None


def run(
    job: Job,
    scorer: Callable[[], AbstractContextManager[WindowScorer]],
    report: ReportProgress,
    *,
    overwrite: bool,
) -> Summary:
    """Score what is not done yet, and put the output together.

    Raises ModelError if the output exists or cannot be written, or the input cannot be read.
    """
    parts = Parts(job.output, job.plan())
    with _writing(parts.directory, kept=False):
        if (published := parts.published()) is not None:
            parts.clear()
            return _summary(job, *published)
        _take_over(job, parts, overwrite=overwrite)
    try:
        with scorer() as opened:
            windows = _score(job, parts, opened, report)
        done = _in_order(job, parts, windows)
    except ModelError:
        with suppress(OSError):  # the store is away: its error must not take the place of this one
            is_useless = job.has_changed() or not any(part.rows for part in parts.done().values())
            if is_useless and parts.holds_plan():
                parts.clear()  # so that a retry starts over
        raise
    with _writing(job.output):
        _publish(job, parts, done)
    rows = sum(part.rows for part in done)
    rejects = sum(part.rejects for part in done)
    with _writing(parts.directory):
        parts.note_published(rows, rejects)
        parts.clear()
    return _summary(job, rows, rejects)


def _summary(job: Job, rows: int, rejects: int) -> Summary:
    return Summary(rows, rejects, job.output + REJECTS if rejects else None)


def _take_over(job: Job, parts: Parts, *, overwrite: bool) -> None:
    """Begin with the parts of earlier runs. Raises ModelError if the output may not be written."""
    storage = parts.storage
    if storage.is_directory(job.output):
        raise ModelError(f"{job.output} is a directory; a file is scored into a file")
    if storage.stat(job.output) is not None and not (overwrite or parts.holds_plan()):
        raise ModelError(f"{job.output} exists; choose another --output, or replace it with --overwrite")
    parts.take_over(overwrite=overwrite)


@contextmanager
def _writing(what: str, *, kept: bool = True) -> Iterator[None]:
    """Turn errors of writing files into one that says what is kept."""
    try:
        yield
    except OSError as error:
        goes_on = "; what is scored is kept, and the same command goes on from there" if kept else ""
        raise ModelError(f"{what} cannot be written: {error.strerror or error}{goes_on}") from None


def _score(job: Job, parts: Parts, scorer: WindowScorer, report: ReportProgress) -> int:
    """Keep a part for every window of the job that has none yet. Return how many windows there are.

    One thread reads windows and tokenizes them; this one writes their parts.
    """
    parts_before = parts.done()
    rows_before = sum(part.rows + part.rejects for part in parts_before.values())
    rows = rows_before
    windows = job.windows()
    count = 0

    def read() -> tuple[Window, Any] | None:
        nonlocal count
        for window in windows:
            count += 1
            if window.number not in parts_before:
                return window, scorer.submit(window)
        return None

    with ThreadPoolExecutor(1, "reader") as reader:
        in_flight = deque(reader.submit(read) for _ in range(WINDOWS_IN_FLIGHT))
        try:
            while (item := in_flight.popleft().result()) is not None:
                window, pending = item
                in_flight.append(reader.submit(read))
                encoded = scorer.finish(pending)
                part = Part(window.number, encoded.rows, encoded.set_aside)
                with _writing(parts.directory):
                    parts.keep(part, encoded.data, encoded.rejects)
                rows += part.rows + part.rejects
                report(window.share, rows, rows_before)
        finally:
            reader.shutdown(cancel_futures=True)
    return count


def _in_order(job: Job, parts: Parts, windows: int) -> list[Part]:
    """Return all parts. Raises ModelError if one is missing, the input is gone or has changed, or no row was
    scored."""
    if job.stat_now() is None:
        raise ModelError(
            f"{job.name} is gone or cannot be reached, so nothing is written; what is scored is kept, and "
            "once the file is back, the same command goes on from there"
        )
    if job.has_changed():
        raise ModelError(
            f"{job.name} has changed while it was scored, so nothing is written; the same command begins anew"
        )
    done = sorted(parts.done().values())
    if len(done) < windows:
        raise ModelError(f"{parts.directory}: another run has removed parts of this one, so this one stops")
    if not any(part.rows for part in done):
        first = next((part for part in done if part.rejects), None)
        if first is None:
            raise ModelError(f"{job.name}: there are no pairs")
        with parts.storage.open(parts.rejects_path(first)) as stream:
            line = bytes(stream.read()).split(b"\n")[0].decode()
            raise ModelError(f"no row can be scored; the first that cannot: {line}")
    return done


def _publish(job: Job, parts: Parts, done: Sequence[Part]) -> None:
    """Write the file of rejects, then the output. It may be done again from the same parts."""
    storage = parts.storage
    rejects = job.output + REJECTS
    storage.remove(rejects)
    if any(part.rejects for part in done):
        with storage.create(rejects) as stream:
            for part in done:
                if part.rejects:
                    with storage.open(parts.rejects_path(part)) as of_part:
                        shutil.copyfileobj(of_part, stream, BUFFER_BYTES)
    assemble(storage, [parts.part_path(part) for part in done], job.output, job.target.kind)
