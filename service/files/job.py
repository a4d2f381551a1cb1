"""A job: which file is scored into which, and all that the output depends on."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from headroom.models.checkpoint.files import digest_of
from headroom.models.checkpoint.hub import locate
from headroom.models.errors import ModelError
from headroom.models.rows import Format, known_format
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import WINDOW_BYTES, WINDOW_ROWS, Window, windows
from headroom.service.files.storage import Stat, Storage
from headroom.version import version

REJECTS = ".rejects.jsonl"
"""Ends the name of the file of rows that were set aside."""


@dataclass(frozen=True, slots=True)
class Job:
    """A file to score, and where its scores go.

    name, stat: the input's, when the job began. source, target: the formats of input and output.
    """

    options: ScoreOptions
    name: str
    stat: Stat
    output: str
    source: Format
    target: Format
    window_rows: int = WINDOW_ROWS

    def windows(self) -> Iterator[Window]:
        """Yield the windows of the file. Raises ModelError if it cannot be read or does not fit the job."""
        first = Window(self.name, 0, self.target)
        return windows(Storage(self.name), first, self.source, self.options, self.window_rows)

    def has_changed(self) -> bool:
        """Return whether the input is there, and not the one that the job began with."""
        stat = self.stat_now()
        return stat is not None and stat != self.stat

    def stat_now(self) -> Stat | None:
        """Return the input's size and time now; None if it is gone, or its disk or store is away."""
        try:
            return Storage(self.name).stat(self.name)
        except (OSError, ModelError):
            return None

    def plan(self) -> dict[str, Any]:
        """Return all that the output depends on: a run goes on with the parts of a run of an equal plan."""
        options = self.options
        variant_models = [variant.checkpoint or options.model for variant in options.live.variants]
        models = dict.fromkeys([options.model, *variant_models])
        live = options.live.model_dump(mode="json", include={"masks", "variants", "default"})
        return {
            f"input, {self.name}": list(self.stat),
            "output": [self.output, str(self.target)],
            "model or stored mask": [digest_of(locate(path, options.model), masks=True) for path in models],
            "mask or variant": [options.live.default, options.mask],
            "config file": live,
            "choice of columns": [*astuple(options.fields), options.prefix],
            "device or number format": [options.device, options.dtype],
            "--label-order": options.label_order,
            "version of headroom": [version(), metadata.version("pyarrow"), self.window_rows, WINDOW_BYTES],
        }


def make_job(name: str, output: str, options: ScoreOptions) -> Job:
    """Look the input up. Raises ModelError if it is missing, would be overwritten or has no known format."""
    if "://" not in output and Path(output).is_symlink():
        output = str(Path(output).resolve())  # a link's target is replaced, and not the link
    for written in (output, output + REJECTS, output + ".parts"):
        if _comparable(name).is_relative_to(_comparable(written)):
            raise ModelError(f"{output}: writing there would replace --input, {name}")
    delimiter = options.fields.delimiter
    source = known_format(name, delimiter)
    target = known_format(output, delimiter)
    stat = Storage(name).stat(name)
    if stat is None:
        raise ModelError(f"{name} does not exist, or is no file")
    return Job(options, name, stat, output, source, target)


def _comparable(name: str) -> PurePath:
    """Return a name as a path that can be compared with another one."""
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://"))
    return PurePath(name) if "://" in name else Path(name).resolve()
