"""A job: which files are scored into which, what is done, and what the output is put together from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models.checkpoint.config import read_config, read_stored_masks
from models.checkpoint.digest import digest_of
from models.checkpoint.hub import locate
from models.errors import ModelError, reading_problem
from models.files import check_regular
from models.quality.formats import Format, format_of
from service.config.variants import MaskForm
from service.files.assembly import Assembly
from service.files.formats import KNOWN, known_format
from service.files.parts import INPUT, Part, Parts
from service.files.reading import WINDOW_BYTES, WINDOW_ROWS, Window, windows
from service.files.request import Column, Request
from service.files.storage import Stat, place_of, storage_of
from service.files.writing import Layout

Report = Callable[[float, int, int], None]
"""Takes how much is done, from 0 to 1, how many rows that is, and how many of them an earlier run did."""

REJECTS = ".rejects.jsonl"
"""Ends the name of the file of rows that were set aside."""


@dataclass(frozen=True, slots=True)
class File:
    """One input file. number: in its job. stat: when the job began. output: the name of its scores' file."""

    number: int
    name: str
    stat: Stat
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
    """Files to score, and where their scores go.

    source: the file or directory that was given. is_directory: whether input and output are directories.
    """

    request: Request
    source: str
    files: tuple[File, ...]
    output: str
    is_directory: bool
    layout: Layout
    window_rows: int = WINDOW_ROWS

    @property
    def rejects_file(self) -> str:
        """Return the name of the file of rows that were set aside."""
        return self.output + REJECTS

    def plan(self) -> dict[str, Any]:
        """Return all that the output depends on: a run goes on with the parts of a run of an equal plan."""
        request = self.request
        paths = dict.fromkeys(
            [request.model, *(variant.checkpoint or request.model for variant in request.live.variants)]
        )
        return {
            INPUT: [[file.name, file.stat.size, file.stat.modified] for file in self.files],
            "output": [self.output, *sorted({str(file.format) for file in self.files})],
            "model": [digest_of(locate(path)) for path in paths],
            **_stored_masks(request, paths),
            "mask or variant": _as_options(request.columns),
            "config file": request.live.model_dump(mode="json", include={"masks", "variants", "default"}),
            "choice of columns": [*request.fields.needed, self.layout.prefix],
            "--delimiter": request.fields.delimiter,
            "--overflow": request.overflow,
            "device or number format": [request.device, request.dtype],
            "version of headroom": [version("headroom"), self.window_rows, WINDOW_BYTES],
        }


def _as_options(columns: Iterable[Column]) -> str:
    """Return the variants and masks as the options of the command line that ask for them."""
    given = [("--variant", column.variant) for column in columns]
    given += [("--mask", _as_text(column.mask)) for column in columns]
    words = [word for option, value in dict.fromkeys(given) if value is not None for word in (option, value)]
    return shlex.join(words) or "no mask and no variant"


def _as_text(mask: MaskForm | None) -> str | None:
    return json.dumps(mask) if isinstance(mask, dict) else mask


def _stored_masks(request: Request, paths: Iterable[str | None]) -> dict[str, Any]:
    """Return the ids of the checkpoints' stored masks that this request may use."""
    masks = {}
    specs = json.dumps(
        [[column.mask for column in request.columns], request.live.model_dump(mode="json")],
        ensure_ascii=False,
    )
    for path in paths:
        directory = locate(path)
        for name, mask in read_stored_masks(directory, read_config(directory)).items():
            if request.fields.mask is not None or name in specs:
                masks[f"stored mask {name}" + (f" of {path}" if path != request.model else "")] = mask.id
    return masks


def make_job(source: str, output: str, request: Request, layout: Layout) -> Job:
    """Look the input up. Raises ModelError if there is none, or a format is not known."""
    source, output = (name.rstrip("/") if "://" in name else str(Path(name)) for name in (source, output))
    storage, delimiter = storage_of(source), request.fields.delimiter
    is_directory = storage.is_directory(source)
    target = _target(output)
    _check_apart(source, target, is_directory)
    if not is_directory:
        names, outputs = [source], [target]
        known_format(source, delimiter)
        formats = [known_format(output, delimiter)]
    else:
        if format_of(output) is not None:
            raise ModelError(
                f"{source} is a directory, so --output must be one too; {output} is a file's name"
            )
        try:
            names = [name for name in storage.files(source) if format_of(name) is not None]
        except OSError as error:
            where = error.filename or source
            raise ModelError(f"{where} cannot be read: {error.strerror or error}") from None
        if not names:
            raise ModelError(f"{source} holds no file of a known format; use {KNOWN}")
        outputs = [f"{target}/{_below(source, name)}" for name in names]
        if len(set(outputs)) < len(outputs):
            raise ModelError(f"{source}: two files would be scored into one")
        formats = [known_format(name, delimiter) for name in names]
    files = []
    for number, (name, output_name, format_) in enumerate(zip(names, outputs, formats, strict=True)):
        stat = storage.stat(name)
        if stat is None:
            raise ModelError(f"{name} does not exist")
        _check_regular(name)
        files.append(File(number, name, stat, output_name, format_))
    return Job(request, source, tuple(files), target, is_directory, layout)


def _check_regular(name: str) -> None:
    if "://" not in name:
        try:
            check_regular(name)
        except OSError as error:
            raise ModelError(reading_problem(name, error)) from None


def _target(output: str) -> str:
    """Return what an output stands for: a link's target is replaced, and not the link."""
    return output if "://" in output or not Path(output).is_symlink() else str(Path(output).resolve())


def _below(directory: str, name: str) -> str:
    """Return the name of a file in a directory, seen from there."""
    return name[len(directory) + 1 :] if "://" in name else str(Path(name).relative_to(directory))


def _check_apart(source: str, output: str, is_directory: bool) -> None:
    """Raise ModelError if the job would write over its input, or into it."""
    given, *written = map(place_of, (source, output, output + REJECTS, output + ".parts"))
    if given == written[0]:
        raise ModelError(f"{output}: --output must be another file than --input")
    if is_directory and written[0].is_relative_to(given):
        raise ModelError(f"{output}: --output must not be inside the directory of --input")
    if any(given.is_relative_to(place) for place in written):
        raise ModelError(f"{output}: writing there would replace --input, {source}")


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
    storage = storage_of(job.source)
    fields, target = job.request.fields, file.format.kind
    for window in windows(storage, file.name, number, fields, target=target, window_rows=job.window_rows):
        if window.number == 0:
            job.layout.check(file.name, window.names)
        elif target == "jsonl":  # each row names its own columns
            window.set_aside(job.layout.taken(window.records))
        yield window


class Progress:
    """The progress of a job. Executors ask it which windows to skip, and hand it the parts that they kept."""

    def __init__(self, job: Job, parts: Parts, report: Report) -> None:
        self.parts, self.ends = parts.done()
        self._report = report
        self._sizes = [max(file.stat.size, 1) for file in job.files]
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
    parts = Parts(job.output, job.plan())
    assembly = Assembly(job, parts)
    with ExitStack() as stack:
        with writing(parts.directory, begun=False):
            assembly.check()
            stack.enter_context(parts.locked())
            same = parts.holds_plan()
            if assembly.exists() and not (overwrite or (same and assembly.is_own())):
                raise ModelError(
                    f"{job.output} exists; choose another --output, or replace it with --overwrite"
                )
            parts.begin(afresh=overwrite)
        if (counts := assembly.finished()) is not None:
            summary = Summary(*counts, job.rejects_file)
        else:
            progress = Progress(job, parts, report)
            try:
                score(job, parts, progress)
                _check_unchanged(job, parts)
                summary = _checked(job, parts, progress)
            except ModelError:
                if not any(part.rows for part in progress.parts.values()):
                    parts.clear()  # so that another try, with the input mended, starts afresh
                raise
            with writing(job.output):
                assembly.make(progress.parts)
        with writing(parts.directory):
            parts.remove()
    return summary


def _check_unchanged(job: Job, parts: Parts) -> None:
    """Raise ModelError, and remove all parts, if an input file is not the one that the job began with."""
    storage = storage_of(job.source)
    for file in job.files:
        if storage.stat(file.name) != file.stat:
            parts.clear()
            raise ModelError(
                f"{file.name} has changed while it was scored, so nothing is written; "
                "the same command begins anew"
            )


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
        with parts.storage.open(parts.rejects_path(first)) as stream:
            raise ModelError(
                f"no row can be scored; the first that cannot: {stream.readline().decode().strip()}"
            )
    return Summary(rows, rejects, job.rejects_file)
