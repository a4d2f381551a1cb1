"""A job: which files are scored into which, what is done, and what the output is put together from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from models.checkpoint.digest import digest_of
from models.checkpoint.hub import locate
from models.errors import ModelError
from models.quality.formats import Format, format_of
from service.bulk.formats import KNOWN, known_format
from service.bulk.parts import Part, Parts
from service.bulk.reading import WINDOW_BYTES, WINDOW_ROWS, Window, windows
from service.bulk.request import Request
from service.bulk.storage import BUFFER_BYTES, Disk, Storage, storage_of
from service.bulk.writing import Layout, assemble

Report = Callable[[float, int, int], None]
"""Takes how much is done, from 0 to 1, how many rows that is, and how many of them an earlier run did."""

SUCCESS = "_SUCCESS"
"""The file that says that a directory in an object store is complete."""


@dataclass(frozen=True, slots=True)
class File:
    """One input file. number: in its job. size: in bytes. output: the name of its scores' file."""

    number: int
    name: str
    size: int
    modified: int
    output: str
    format: Format


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished job: the rows that were scored, those that were set aside, and the file that holds these."""

    rows: int
    rejects: int
    rejects_file: str


@dataclass(frozen=True, slots=True)
class Job:
    """Files to score, and where their scores go. is_directory: whether input and output are directories."""

    request: Request
    files: tuple[File, ...]
    output: str
    is_directory: bool
    layout: Layout
    window_rows: int = WINDOW_ROWS

    @property
    def rejects_file(self) -> str:
        """Return the name of the file of rows that were set aside."""
        return self.output + ".rejects.jsonl"

    def plan(self) -> dict[str, Any]:
        """Return all that the output depends on: a run goes on with the parts of a run of an equal plan."""
        request = self.request
        paths = [
            request.model,
            *(variant.checkpoint for variant in request.live.variants if variant.checkpoint),
        ]
        return {
            "input": [[file.name, file.size, file.modified] for file in self.files],
            "output": [self.output, *sorted({str(file.format) for file in self.files})],
            "model": [digest_of(locate(path)) for path in paths],
            "mask or variant": [[column.variant, column.mask] for column in request.columns],
            "config file": request.live.model_dump(mode="json", include={"masks", "variants"}),
            "choice of columns": [*request.fields.needed, self.layout.prefix],
            "--overflow": request.overflow,
            "device or number format": [request.device, request.dtype],
            "version of headroom": [self.window_rows, WINDOW_BYTES, 1],
        }


def make_job(source: str, output: str, request: Request, layout: Layout) -> Job:
    """Look the input up. Raises ModelError if there is none, or a format is not known."""
    source, output = (name.rstrip("/") if len(name) > 1 else name for name in (source, output))
    storage = storage_of(source)
    if source == output:
        raise ModelError(f"{output}: --output must be another file than --input")
    is_directory = storage.is_directory(source)
    if not is_directory:
        names, outputs = [source], [output]
        known_format(source)
        formats = [known_format(output)]
    else:
        if format_of(output) is not None:
            raise ModelError(
                f"{source} is a directory, so --output must be one too; {output} is a file's name"
            )
        names = [name for name in storage.files(source) if format_of(name) is not None]
        if not names:
            raise ModelError(f"{source} holds no file of a known format; use {KNOWN}")
        outputs = [f"{output}/{name[len(source) + 1 :]}" for name in names]
        formats = [known_format(name) for name in names]
    files = []
    for number, (name, target, format_) in enumerate(zip(names, outputs, formats, strict=True)):
        stat = storage.stat(name)
        if stat is None:
            raise ModelError(f"{name} does not exist")
        files.append(File(number, name, stat.size, stat.modified, target, format_))
    return Job(request, tuple(files), output, is_directory, layout)


@contextmanager
def writing(what: str, *, begun: bool = True) -> Iterator[None]:
    """Turn errors of writing files into one that says what is kept. begun: whether the job has written."""
    try:
        yield
    except OSError as error:
        kept = "; what is scored is kept, and the same command goes on from there" if begun else ""
        raise ModelError(f"{what} cannot be written: {error.strerror or error}{kept}") from None


def read_windows(job: Job, number: int) -> Iterator[Window]:
    """Yield the windows of one of the job's files. Raises ModelError if its columns do not fit the job."""
    file = job.files[number]
    storage = storage_of(file.name)
    fields, target = job.request.fields, file.format.kind
    for window in windows(storage, file.name, number, fields, target=target, window_rows=job.window_rows):
        if window.number == 0:
            job.layout.check(file.name, window.names)
        yield window


class Progress:
    """The progress of a job. Executors ask it which windows to skip, and hand it the parts that they kept."""

    def __init__(self, job: Job, parts: Parts, report: Report) -> None:
        self.parts, self.ends = parts.done()
        self._report = report
        self._sizes = [max(file.size, 1) for file in job.files]
        self._shares = [1.0 if file.number in self.ends else 0.0 for file in job.files]
        self._rows = sum(part.rows + part.rejects for part in self.parts.values())
        self._before = self._rows

    def is_done(self, file: int, window: int) -> bool:
        """Return whether a window is kept."""
        return (file, window) in self.parts

    def is_read(self, file: int) -> bool:
        """Return whether all windows of a file are kept."""
        windows = self.ends.get(file)
        return windows is not None and all((file, number) in self.parts for number in range(windows))

    def passed(self, file: int, share: float) -> None:
        """Note that a file is done up to a share of it."""
        self._shares[file] = max(self._shares[file], share)

    def kept(self, part: Part, share: float) -> None:
        """Note a new part, and report."""
        self.parts[part.file, part.window] = part
        self._rows += part.rows + part.rejects
        self.passed(part.file, share)
        done = sum(share * size for share, size in zip(self._shares, self._sizes, strict=True))
        self._report(done / sum(self._sizes), self._rows, self._before)


def run(
    job: Job, score: Callable[[Job, Parts, Progress], None], report: Report, *, overwrite: bool
) -> Summary:
    """Score what is not done yet, and put the output together.

    score: keeps a part for every window of every file, and notes each file's end.
    Raises ModelError if the output exists or cannot be written, or the input cannot be read.
    """
    storage = storage_of(job.output)
    parts = Parts(job.output)
    plan = job.plan()
    before = _state(storage, job.output)
    with writing(parts.directory, begun=False):
        same = parts.holds(plan)
        was_put_together = same and parts.mark() not in (None, before)
        if before and not was_put_together and not overwrite:
            raise ModelError(f"{job.output} exists; choose another --output, or replace it with --overwrite")
        if overwrite and not same:
            parts.remove()
        parts.begin(plan)
    with parts.locked():
        progress = Progress(job, parts, report)
        try:
            score(job, parts, progress)
            summary = _checked(job, parts, progress)
        except ModelError:
            if not any(part.rows for part in progress.parts.values()):
                parts.remove()  # so that another try, with the input mended, starts afresh
            raise
        if not was_put_together:
            with writing(job.output):
                parts.set_mark(before)
                _put_together(job, parts, progress)
        with writing(parts.directory):
            parts.remove()
    return summary


def _state(storage: Storage, output: str) -> str:
    """Return what tells an output from another one of that name; "" if there is none."""
    files = [(name, storage.stat(name)) for name in (output, *storage.files(output))]
    there = [(name, stat) for name, stat in files if stat is not None]
    return repr(there) if there else ""


def _checked(job: Job, parts: Parts, progress: Progress) -> Summary:
    """Raise ModelError if a part is missing or no row was scored; else return the counts."""
    for file in job.files:
        if not progress.is_read(file.number):
            raise ModelError(
                f"{parts.directory} lacks parts of {file.name}; the output must be where every node writes"
            )
    kept = progress.parts.values()
    rows, rejects = sum(part.rows for part in kept), sum(part.rejects for part in kept)
    if not rows:
        first = next((part for part in kept if part.rejects), None)
        if first is None:
            raise ModelError(f"{' and '.join(file.name for file in job.files[:3])}: there are no pairs")
        with parts.storage.open(parts.path(first.stem + ".rejects")) as stream:
            raise ModelError(
                f"no row can be scored; the first that cannot: {stream.readline().decode().strip()}"
            )
    return Summary(rows, rejects, job.rejects_file)


def _put_together(job: Job, parts: Parts, progress: Progress) -> None:
    """Write the file of rejects, then the output, whose name appears when it is whole."""
    storage = storage_of(job.output)
    in_order = [progress.parts[key] for key in sorted(progress.parts)]
    rejects = [parts.path(part.stem + ".rejects") for part in in_order if part.rejects]
    storage.remove(job.rejects_file)
    if rejects:
        with storage.create(job.rejects_file) as stream:
            for name in rejects:
                with parts.storage.open(name) as part:
                    shutil.copyfileobj(part, stream, BUFFER_BYTES)
    on_disk = isinstance(storage, Disk)
    whole = parts.path("whole")  # a directory gets its name when all its files are there
    storage.remove(whole)
    if job.is_directory and not on_disk:
        storage.remove(job.output)
    for file in job.files:
        names = [parts.path(part.name) for part in in_order if part.file == file.number]
        target = whole + file.output.removeprefix(job.output) if job.is_directory and on_disk else file.output
        storage.make_directory(target.rpartition("/")[0] or ".")
        assemble(parts.storage, names, target, file.format, into=storage)
    if job.is_directory and on_disk:
        storage.remove(job.output)
        storage.move(whole, job.output)
    elif job.is_directory:
        storage.write(f"{job.output}/{SUCCESS}", b"")
