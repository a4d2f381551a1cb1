"""A job: which files are scored into which, and all that the output depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from models.checkpoint.files import digest_of
from models.checkpoint.hub import locate
from models.errors import ModelError
from models.quality.formats import Format, format_of
from service.files.options import ScoreOptions
from service.files.reading import WINDOW_BYTES, WINDOW_ROWS, Window, windows
from service.files.storage import Stat, Storage

KNOWN = "csv, tsv and jsonl (each also .gz or .zst) and parquet"
REJECTS = ".rejects.jsonl"
"""Ends the name of the file of rows that were set aside."""


@dataclass(frozen=True, slots=True)
class File:
    """One input file. number: in its job. stat: when the job began. output: the name of its scores' file.

    source, target: the formats of both.
    """

    number: int
    name: str
    stat: Stat
    output: str
    source: Format
    target: Format


@dataclass(frozen=True, slots=True)
class Job:
    """Files to score, and where their scores go.

    source: the file or directory that was given. is_directory: whether input and output are directories.
    """

    options: ScoreOptions
    source: str
    files: tuple[File, ...]
    output: str
    is_directory: bool
    window_rows: int = WINDOW_ROWS

    def windows(self) -> Iterator[Window]:
        """Yield the windows of all files. Raises ModelError if one does not fit the job."""
        storage = Storage(self.source)
        for file in self.files:
            first = Window(file.number, file.name, 0, file.target)
            yield from windows(storage, first, file.source, self.options, self.window_rows)

    def changed_input(self) -> str | None:
        """Return the name of an input file that is not the one that the job began with; None if all are."""
        storage = Storage(self.source)
        return next((file.name for file in self.files if storage.stat(file.name) != file.stat), None)

    def plan(self) -> dict[str, Any]:
        """Return all that the output depends on: a run goes on with the parts of a run of an equal plan."""
        options = self.options
        models = dict.fromkeys(
            [options.model, *(v.checkpoint or options.model for v in options.live.variants)]
        )
        live = options.live.model_dump(mode="json", include={"masks", "variants", "default"})
        return {
            **{f"input, {file.name}": list(file.stat) for file in self.files},
            "output": [self.output, *sorted({str(file.target) for file in self.files})],
            "model or stored mask": [digest_of(locate(path, options.model), masks=True) for path in models],
            "mask or variant": [[column.variant, column.mask] for column in options.columns],
            "config file": live,
            "choice of columns": [*astuple(options.fields), options.prefix],
            "--overflow": options.overflow,
            "device or number format": [options.device, options.dtype],
            "version of headroom": [version("headroom"), version("pyarrow"), self.window_rows, WINDOW_BYTES],
        }


def make_job(source: str, output: str, options: ScoreOptions) -> Job:
    """Look the input up. Raises ModelError if there is none, or a format is not known."""
    source, output = (name.rstrip("/") if "://" in name else str(Path(name)) for name in (source, output))
    if "://" not in output and Path(output).is_symlink():
        output = str(Path(output).resolve())  # a link's target is replaced, and not the link
    storage = Storage(source)
    is_directory = storage.is_directory(source)
    _check_apart(source, output, is_directory)
    names, outputs = [source], [output]
    if is_directory:
        if format_of(output) is not None:
            raise ModelError(
                f"{source} is a directory, so --output must be one too; {output} is a file's name"
            )
        try:
            names = [name for name in storage.files(source) if format_of(name) is not None]
        except OSError as error:
            raise ModelError(f"{source} cannot be read: {error}") from None
        if not names:
            raise ModelError(f"{source} holds no file of a known format; use {KNOWN}")
        outputs = [output + name.removeprefix(source) for name in names]
    files = []
    for number, (name, target) in enumerate(zip(names, outputs, strict=True)):
        formats = []
        for each in (name, target):
            if (file_format := format_of(each, options.fields.delimiter)) is None:
                raise ModelError(f"{each}: the name ends in no known format; use {KNOWN}")
            formats.append(file_format)
        if (stat := storage.stat(name)) is None:
            raise ModelError(f"{name} does not exist, or is no file")
        files.append(File(number, name, stat, target, *formats))
    return Job(options, source, tuple(files), output, is_directory)


def _check_apart(source: str, output: str, is_directory: bool) -> None:
    """Raise ModelError if the job would write over its input, or into it."""
    given, *written = map(_place, (source, output, output + REJECTS, output + ".parts"))
    if is_directory and written[0].is_relative_to(given):
        raise ModelError(f"{output}: --output must not be inside the directory of --input")
    if any(given.is_relative_to(place) for place in written):
        raise ModelError(f"{output}: writing there would replace --input, {source}")


def _place(name: str) -> PurePath:
    """Return a name as a path that can be compared with another one."""
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://"))
    return PurePath(name) if "://" in name else Path(name).resolve()
