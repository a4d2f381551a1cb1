"""Small models taught by large ones, from Python: `headroom.distil`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.api.arguments import MIN_MINUTES, check_range, errors_name_arguments
from headroom.models.api.data import DIRECTORY, path_of, source_of, unjudged_source_of
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.frame import frame
from headroom.models.quality.bootstrap import NO_INTERVAL, Interval
from headroom.models.quality.labelled import Columns
from headroom.models.quality.metrics import NAMES
from headroom.models.terminal import Stages, table
from headroom.models.training.distil.job import DistilOptions, Job, StudentSize, prepare

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.api.data import Data, UnjudgedData
    from headroom.models.classifier import Classifier


@dataclass(frozen=True)
class Taught:
    """A student after its lessons. path: its checkpoint. metrics: the content of its metrics.json."""

    path: Path
    metrics: Json

    def load(self, device: str = "auto", dtype: str = "auto") -> Classifier:
        """Return its classifier. device, dtype: "auto", or a name of torch's."""
        from headroom.models.classifier import Classifier

        return Classifier.load(self.path, device, dtype)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, a row for each metric of each side and each paired difference.

        Columns: side, metric, value, low, high; no rows without judged pairs. Raises ModuleNotFoundError
        without pandas.
        """
        rows = [
            (side, metric, interval["value"], interval["low"], interval["high"])
            for side, metrics in self.metrics.get("quality", {}).items()
            for metric, interval in metrics.items()
        ]
        names = ("side", "metric", "value", "low", "high")
        return frame({name: [row[index] for row in rows] for index, name in enumerate(names)})

    def __str__(self) -> str:
        return f"{self.path}: {summary(self.metrics)}"

    __repr__ = __str__


@errors_name_arguments(model="student")
def distil(
    teacher: Classifier | str | PathLike[str] | None,
    data: UnjudgedData,
    out: str | PathLike[str],
    *,
    student: str | PathLike[str] | None = None,
    layers: int | None = None,
    heads: int | None = None,
    units: int | None = None,
    scores: str | None = None,
    test: Data | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    query: str = "query",
    title: str = "title",
    grade: str = "grade",
    seed: int = 0,
) -> Taught:
    """Teach a small model the scores of a large one, or those in a column, on pairs that nobody judged.

    teacher: a classifier, a checkpoint's directory or a hub id; None for the shipped model, or with `scores`.
    data: query–title pairs: a DataFrame, a file of any size, or (query, title) tuples. student: a checkpoint;
    None for the teacher, of which `layers`, `heads` and `units` say what stays. scores: a column of `data`
    that teaches in place of a model. test: judged pairs, a DataFrame or a file; None for the sample's, if
    they fit. query, title, grade: the names of the columns; a test's file that lacks one may have it under
    the usual name. A call that was stopped goes on when it is repeated.
    Raises ModelError for wrong data or options.
    """
    check_range("steps", steps, 1, whole=True)
    check_range("minutes", minutes, MIN_MINUTES)
    check_range("seed", seed, 0, whole=True)
    for name, kept in (("layers", layers), ("heads", heads), ("units", units)):
        check_range(name, kept, 1, whole=True)
    from headroom.models.classifier import Classifier

    labels = None
    if isinstance(teacher, Classifier):
        if teacher.directory is None:
            raise ModelError("distil needs a teacher that was loaded from a directory or the hub")
        labels = teacher.config.labels
        teacher = teacher.directory
    if steps is not None and minutes is not None:
        raise ModelError("steps, minutes: give one of them")
    columns = Columns(query, title, grade)
    options = DistilOptions(
        data=unjudged_source_of(data, columns, scores=scores),
        out=path_of("out", out, DIRECTORY),
        teacher=None if teacher is None else str(teacher),
        scores=scores,
        model=None if student is None else str(student),
        cut=StudentSize(layers, heads, units),
        test=None if test is None else source_of(test, columns, "test"),
        steps=steps,
        minutes=minutes,
        seed=seed,
        columns=columns,
        teacher_labels=labels,
    )
    return taught(options)


def taught(options: DistilOptions, notice: Callable[[Job], None] = lambda _: None) -> Taught:
    """Check the options and teach. notice: is given the job before the work begins."""
    job = prepare(options)
    notice(job)
    import transformers

    from headroom.models.training.distil.running import distil

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with contextlib.closing(Stages()) as stages:
        return Taught(options.out, distil(job, stages))


def summary(metrics: Json) -> str:
    """Return what a student is and what it learnt as text for people."""
    size = _size(metrics["size"], metrics["kept_layers"])
    lines = [f"{size}; {metrics['steps']:,} steps, {metrics['pairs']:,} pairs"]
    if "quality" in metrics:
        lines.append("on {test_pairs:,} judged pairs of {test_queries:,} queries:".format(**metrics))
        quality = metrics["quality"]
        if metrics["against_teacher"] is not None:
            lines.insert(0, metrics["against_teacher"]["verdict"])
        lines.append(_quality_table(quality))
        if "teacher" in quality and quality["student"].keys() - quality["teacher"].keys():
            lines.append("  the teacher's grades are not the student's: it is judged by its order alone")
    agreement = metrics["agreement"]
    if agreement is not None:
        before, after, change = (_text(agreement[name], sign=name == "change") for name in _AGREEMENT)
        lines.append(
            f"order of the titles of queries that were not trained on ({agreement['queries']:,}), Spearman "
            f"with what taught: {before} before, {after} after, change {change}"
        )
    return "\n".join([*lines, _speed(metrics["speed"])])


_AGREEMENT = ("before", "student", "change")
_PARTS = ("layers", "heads", "units")


def _size(sizes: Json, kept_layers: Sequence[int]) -> str:
    """Return how large the student is, and of a cut one what it was cut from. sizes: as metrics.json has
    them."""
    student = sizes["student"]
    source = sizes["source"]
    if all(student[name] == source[name] for name in _PARTS):
        parts = [f"{student[name]:,} {name}" for name in _PARTS]
        parts.append(_megabytes(student))
    else:
        parts = [f"{student[name]:,} of {source[name]:,} {name}" for name in _PARTS]
        if student["layers"] < source["layers"]:
            parts[0] += f" ({', '.join(map(str, kept_layers))})"
        parts.append(f"{_megabytes(student)} of {_megabytes(source)}")
    if "teacher" in sizes and sizes["teacher"] != source:
        parts[-1] += f" (the teacher: {_megabytes(sizes['teacher'])})"
    return ", ".join(parts)


def _megabytes(size: Json) -> str:
    return f"{size['bytes'] / 1e6:.1f} MB"


def _quality_table(quality: Json) -> str:
    sides = [name for name in ("teacher", "before", "student") if name in quality]
    differences = [name for name in ("student_minus_teacher", "student_minus_before") if name in quality]
    heads = {"before": "student before", "student_minus_teacher": "student − teacher"}
    heads["student_minus_before"] = "student − before"
    rows = [["", *(heads.get(name, name) for name in (*sides, *differences))]]
    for metric in quality["student"]:
        texts = [_text(quality[side].get(metric)) for side in sides]
        texts += [_text(quality[name].get(metric), sign=True) for name in differences]
        rows.append([f"  {NAMES[metric]}", *texts])
    return table(rows)


def _speed(speed: Json) -> str:
    rates = speed["pairs_per_second"]
    texts = [
        f"{name} {_text(rates[name], digits=0)} pairs/s" for name in ("teacher", "student") if name in rates
    ]
    line = f"on one thread: {', '.join(texts)}"
    if speed["student_times_teacher"] is not None:
        line += f"; the student is {_text(speed['student_times_teacher'], digits=2)} times as fast"
    return line


def _text(value: Json | None, *, digits: int = 3, sign: bool = False) -> str:
    """Return a value and its interval, as metrics.json has them."""
    if value is None:
        return "–"
    ends = (float("nan") if end is None else float(end) for end in value.values())
    return Interval(*ends).text(digits, sign=sign).removesuffix(NO_INTERVAL)
