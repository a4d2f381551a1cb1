"""A job: which files are scored into which, and all that the output depends on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from models.checkpoint.config import read_config, read_stored_masks
from models.checkpoint.files import digest_of
from models.checkpoint.hub import locate
from models.errors import ModelError, reading_problem
from models.files import check_regular
from models.quality.formats import Format, format_of
from service.files.options import ScoreOptions
from service.files.parts import INPUT
from service.files.reading import WINDOW_BYTES, WINDOW_ROWS, Window, windows
from service.files.storage import Stat, storage_of

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
        storage = storage_of(self.source)
        for file in self.files:
            first = Window(file.number, file.name, 0, file.target)
            yield from windows(storage, first, file.source, self.options, self.window_rows)

    def check_unchanged(self) -> None:
        """Raise ModelError if an input file is not the one that the job began with."""
        storage = storage_of(self.source)
        for file in self.files:
            if storage.stat(file.name) != file.stat:
                raise ModelError(
                    f"{file.name} has changed while it was scored, so nothing is written; "
                    "the same command begins anew"
                )

    def plan(self) -> dict[str, Any]:
        """Return all that the output depends on: a run goes on with the parts of a run of an equal plan.

        The stored masks of the checkpoints are in it if this options may use them.
        """
        options = self.options
        models = dict.fromkeys(
            [options.model, *(v.checkpoint or options.model for v in options.live.variants)]
        )
        live = options.live.model_dump(mode="json", include={"masks", "variants", "default"})
        columns = [[column.variant, column.mask] for column in options.columns]
        specs = json.dumps([columns, live], ensure_ascii=False)
        stored: dict[str, list[str]] = {}
        for directory in (locate(model, options.model) for model in models):
            for name, mask in read_stored_masks(directory, read_config(directory)).items():
                if options.fields.mask is not None or name in specs:
                    stored.setdefault(f"stored mask {name}", []).append(mask.id)
        return {
            INPUT: [[file.name, file.stat.size, file.stat.modified] for file in self.files],
            "output": [self.output, *sorted({str(file.target) for file in self.files})],
            "model": [digest_of(locate(path, options.model)) for path in models],
            **stored,
            "mask or variant": columns,
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
    storage, delimiter = storage_of(source), options.fields.delimiter
    is_directory = storage.is_directory(source)
    _check_apart(source, output, is_directory)
    if is_directory:
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
        outputs = [f"{output}/{_below(source, name)}" for name in names]
    else:
        names, outputs = [source], [output]
    files = []
    for number, (name, target) in enumerate(zip(names, outputs, strict=True)):
        formats = [_known(each, delimiter) for each in (name, target)]
        stat = storage.stat(name)
        if stat is None:
            raise ModelError(f"{name} does not exist")
        if "://" not in name:
            try:
                check_regular(name)
            except OSError as error:
                raise ModelError(reading_problem(name, error)) from None
        files.append(File(number, name, stat, target, *formats))
    return Job(options, source, tuple(files), output, is_directory)


def _known(name: str, delimiter: str) -> Format:
    """Return the format that a file's name ends in."""
    file_format = format_of(name, delimiter)
    if file_format is None:
        raise ModelError(f"{name}: the name ends in no known format; use {KNOWN}")
    return file_format


def _below(directory: str, name: str) -> str:
    """Return the name of a file in a directory, seen from there."""
    return name[len(directory) + 1 :] if "://" in name else str(Path(name).relative_to(directory))


def _check_apart(source: str, output: str, is_directory: bool) -> None:
    """Raise ModelError if the job would write over its input, or into it."""
    given, *written = map(_place, (source, output, output + REJECTS, output + ".parts"))
    if given == written[0]:
        raise ModelError(f"{output}: --output must be another file than --input")
    if is_directory and written[0].is_relative_to(given):
        raise ModelError(f"{output}: --output must not be inside the directory of --input")
    if any(given.is_relative_to(place) for place in written):
        raise ModelError(f"{output}: writing there would replace --input, {source}")


def _place(name: str) -> PurePath:
    """Return a name as a path that can be compared with another one."""
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://"))
    return PurePath(name) if "://" in name else Path(name).resolve()
