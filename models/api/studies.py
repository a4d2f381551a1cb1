"""Head studies from Python. Each function asks one question, as `headroom study` does.

>>> found = study.layers(clf, pairs, quick=True)
>>> found.to_frame()["off"].value_counts()["alone"]
np.int64(12)
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_args

import orjson

from headroom.models.api.arguments import (
    MARGINS,
    SEEDS,
    SPEEDUPS,
    STEPS,
    check_range,
    errors_name_arguments,
)
from headroom.models.api.data import DIRECTORY, path_of, source_of
from headroom.models.api.shown import as_html
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.frame import frame
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.labelled import Columns
from headroom.models.study import TAKES, Kind, Part, kinds, pairs, plots, removable_parts, report_files
from headroom.models.study.limits import limits
from headroom.models.study.page import Result, check_directory
from headroom.models.study.study import Study
from headroom.models.terminal import Stages

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from headroom.models.api.data import Data

__all__ = [
    "StudyResult",
    "all",
    "initialisation",
    "layers",
    "random",
    "roles",
    "search",
    "similarity",
    "single",
]

RECORDS = {"single": "heads", "random": "curves", "layers": "layers", "search": "path", "all": "path"}
"""The list of report.json that becomes a kind's table."""


class StudyOptions(TypedDict, total=False):
    """The keyword arguments of every study.

    query, title, grade: the names of the data's columns. seed: of every random draw. quick: give a rough
    answer, in some minutes. out: the directory for the report; it keeps what is computed, so that the same
    study goes on where it was stopped.
    """

    query: str
    title: str
    grade: str
    seed: int
    quick: bool
    out: str | PathLike[str] | None


class MarginOptions(StudyOptions, total=False):
    """`StudyOptions` and `margin`: the fall of each metric that is accepted."""

    margin: float


@dataclass(frozen=True, eq=False, repr=False)
class StudyResult:
    """The answer of a study.

    verdict: in a sentence or two. content: the findings, as report.json has them. limits: what the study
    cannot show, a sentence each. mask: the heads, units and layers that stay, as `search` chose them; None
    for other kinds, and if nothing is good enough.
    """

    study: Study
    result: Result

    @property
    def kind(self) -> str:
        """Return which question was asked."""
        return self.result.kind

    @property
    def verdict(self) -> str:
        return self.result.verdict

    @property
    def limits(self) -> list[str]:
        return limits(self.kind, self.study)

    @property
    def content(self) -> Json:
        content: Json = orjson.loads(orjson.dumps(self.result.json, option=report_files.JSON))
        return content

    @property
    def mask(self) -> HeadMask | None:
        text = self.result.files.get("mask.json")
        return None if text is None else self.study.classifier.mask(orjson.loads(text)["mask"])

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: a row per head (`single`), draw (`random`), layers off (`layers`), role
        and head (`roles`), two heads (`similarity`), kind of start (`initialisation`) or network (`search`
        and `all`).

        Its columns are the keys of report.json; ends of an interval have _low and _high at their end.
        Raises ModuleNotFoundError without pandas.
        """
        records = [_flat(record) for record in self._records()]
        names = dict.fromkeys(name for record in records for name in record)
        return frame({name: [record.get(name) for record in records] for name in names})

    def _records(self) -> list[Json]:
        content = self.content
        if self.kind in RECORDS:
            records: list[Json] = content[RECORDS[self.kind]]
            return records
        if self.kind == "roles":
            return [{"role": role, **row} for role, rows in content["roles"].items() for row in rows]
        if self.kind == "initialisation":
            starts = content["initialisation"]["starts"]
            return [{"start": start, **_figures_of(found)} for start, found in starts.items()]
        found = content["similarity"]
        heads = [tuple(head) for head in found["heads"]]
        return [
            {"layer": layer, "head": head, "other_layer": other[0], "other_head": other[1], "distance": value}
            for (layer, head), row in zip(heads, found["matrix"], strict=True)
            for other, value in zip(heads, row, strict=True)
            if (layer, head) < other
        ]

    def plot(self) -> Figure:
        """Return the study's picture, a matplotlib figure of its own."""
        assert self.result.picture is not None
        return plots.drawn(self.result.picture.draw)

    @errors_name_arguments(out="directory")
    def report(self, directory: str | PathLike[str] | None = None) -> Path:
        """Write what `headroom study` writes (report.html, .md and .json, plots, and a mask of `search`), and
        return the path of report.html.

        directory: in place of an earlier report of the same kind; default: `out` of the study.
        Raises ModelError if it holds something else.
        """
        if directory is None and not self._has_directory:
            raise ModelError("directory: name one, as in report('runs/single')")
        out = self.study.out if directory is None else path_of("directory", directory, DIRECTORY)
        check_directory(out, self.kind)
        with contextlib.closing(Stages()) as progress:
            runner = replace(self.study.runner, progress=progress)
            report_files.write(replace(self.study, out=out, runner=runner), self.result)
        return out / "report.html"

    @property
    def _has_directory(self) -> bool:
        return self.study.runner.cache is not None

    def _heading(self) -> str:
        data = self.study.data
        read = f"{len(data):,} pairs of {len(data.queries):,} queries from {data.source}"
        return f"Study “{self.kind}” of {self.study.classifier.name} on {read}"

    def __repr__(self) -> str:
        lines = [self._heading(), textwrap.fill(self.verdict, 100)]
        return "\n".join([*lines, *(textwrap.fill(sentence, 100) for sentence in self.limits)])

    def _repr_html_(self) -> str:
        tables = [table for section in self.result.sections for table in section.tables]
        return as_html(self.verdict, [self._heading(), *self.limits], tables[:1])


def single(
    clf: Classifier, data: Data, *, part: Part = "encoder", **options: Unpack[MarginOptions]
) -> StudyResult:
    """Switch each head off alone: what does each metric lose? Options: `MarginOptions`.

    part: "cross" switches off the heads of the query generator's encoder–decoder attention: which of them
    copy pieces of the question, and which write others? Raises ModelError if there is no generator.
    """
    if part not in get_args(Part):
        raise ModelError(f"part: {part!r} is none of {', '.join(get_args(Part))}")
    if part == "cross":
        clf.checked_generator()
    return _study("single", clf, data, options, more={"part": part})


def random(clf: Classifier, data: Data, **options: Unpack[MarginOptions]) -> StudyResult:
    """Switch heads off at random, more and more of them, in all layers, the lower and the upper half."""
    return _study("random", clf, data, options)


def layers(clf: Classifier, data: Data, **options: Unpack[MarginOptions]) -> StudyResult:
    """Switch the heads of whole layers off, one at a time and cumulatively."""
    return _study("layers", clf, data, options)


def roles(clf: Classifier, data: Data, **options: Unpack[StudyOptions]) -> StudyResult:
    """Find the heads that attend by word order, word parts, equal terms and special tokens. Options:
    `StudyOptions`."""
    return _study("roles", clf, data, cast("MarginOptions", options))


def similarity(clf: Classifier, data: Data, **options: Unpack[StudyOptions]) -> StudyResult:
    """Compare the attention patterns of all heads with each other."""
    return _study("similarity", clf, data, cast("MarginOptions", options))


def initialisation(
    clf: Classifier,
    data: Data,
    *,
    seeds: int = 5,
    steps: int | None = None,
    **options: Unpack[StudyOptions],
) -> StudyResult:
    """Train the same recipe from several starts: how much of the heads' attention is the seed's?

    seeds: starts of each kind, 3 to 20. steps: of each training; default: 100, or 20 with `quick`. More
    options: `StudyOptions`.
    """
    check_range("seeds", seeds, *SEEDS, whole=True)
    check_range("steps", steps, *STEPS, whole=True)
    more = {"seeds": seeds, "steps": steps}
    return _study("initialisation", clf, data, cast("MarginOptions", options), more=more)


def search(
    clf: Classifier,
    data: Data,
    *,
    holdout: Data | None = None,
    what: str | Iterable[str] = ("heads",),
    speedup: float | None = None,
    **options: Unpack[MarginOptions],
) -> StudyResult:
    """Find the smallest network that is shown to be good enough; `mask` is what it keeps.

    holdout: pairs of other queries, on which the networks are tested; without them nothing is shown.
    what: which of heads, units and layers may go, as a tuple or "heads,units"; more than heads, or a
    speedup, searches by time.
    speedup: how many times as fast; None: what the margin allows. More options: `MarginOptions`.
    """
    try:
        parts = removable_parts(what)
    except ValueError as error:
        raise ModelError(f"what: {error}") from None
    check_range("speedup", speedup, *SPEEDUPS)
    more = {"what": parts, "speedup": speedup}
    return _study("search", clf, data, options, holdout, more)


def all(  # noqa: A001  # as the command calls it
    clf: Classifier,
    data: Data,
    *,
    holdout: Data | None = None,
    seeds: int = 5,
    steps: int | None = None,
    **options: Unpack[MarginOptions],
) -> StudyResult:
    """Ask every question, in one report. Verdict, picture, table and mask are those of `search`, of heads
    alone.

    holdout: pairs of other queries, on which the smaller networks are tested; without it nothing is chosen.
    seeds, steps: those of `initialisation`. More options: `MarginOptions`.
    """
    check_range("seeds", seeds, *SEEDS, whole=True)
    check_range("steps", steps, *STEPS, whole=True)
    return _study("all", clf, data, options, holdout, {"seeds": seeds, "steps": steps})


@errors_name_arguments(out="out", what="what")
def _study(
    kind: Kind,
    clf: Classifier,
    data: Data,
    options: MarginOptions,
    holdout: Data | None = None,
    more: Mapping[str, Any] = {},
) -> StudyResult:
    """Read the data and ask. more: further fields of `Study`.

    Raises TypeError for an option that the kind does not take, or that does nothing for it.
    """
    _check_names(kind, options)
    columns = Columns(
        options.get("query", "query"), options.get("title", "title"), options.get("grade", "grade")
    )
    seed = options.get("seed", 0)
    check_range("seed", seed, 0, whole=True)
    check_range("margin", options.get("margin"), *MARGINS)
    out = options.get("out")
    directory = None if out is None else path_of("out", out, DIRECTORY)
    if directory is not None:
        check_directory(directory, kind)
    judged, held_out = pairs.read_both(
        kind,
        clf.config,
        source_of(data, columns),
        None if holdout is None else source_of(holdout, columns, "holdout"),
        columns=columns,
        seed=seed,
    )
    quick = options.get("quick", False)
    if "margin" in options:
        more = {**more, "margin": options["margin"]}
    with contextlib.closing(Stages()) as progress:
        return StudyResult(
            *kinds.ask(
                kind,
                clf,
                judged,
                held_out,
                progress=progress,
                out=directory,
                quick=quick,
                seed=seed,
                **more,
            )
        )


def _check_names(kind: Kind, options: MarginOptions) -> None:
    """Raise TypeError for an option that the function of a kind does not take."""
    valid = [*StudyOptions.__annotations__, *(name for name, kinds in TAKES.items() if kind in kinds)]
    for name in options:
        if name not in valid:
            raise TypeError(f"study.{kind}() takes no option {name!r}; it takes {', '.join(valid)}")


def _figures_of(start: Json) -> Json:
    """Return a kind of start's intervals as objects of a value and its ends."""
    figures = {name: start[name] for name in ("variance", "matched", "cka")}
    return {
        group: {
            name: {"value": one["value"], "interval": [one["low"], one["high"]]} for name, one in of.items()
        }
        for group, of in figures.items()
    }


def _flat(record: Mapping[str, Any], prefix: str = "") -> Json:
    """Return nested objects and intervals as columns of their own."""
    flat: Json = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}_")
        elif isinstance(value, list) and len(value) == 2 and not isinstance(value[0], list):
            flat[f"{name}_low"], flat[f"{name}_high"] = value
        else:
            flat[name] = value
    return flat
