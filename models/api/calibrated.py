"""Checkpoints whose scores are probabilities, from Python: `headroom.calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from headroom.models.api.arguments import check_range, errors_name_arguments
from headroom.models.api.data import DIRECTORY, path_of, source_of
from headroom.models.checkpoint.files import check_empty, new_directory
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.frame import frame
from headroom.models.numbers import fixed, number
from headroom.models.quality.bootstrap import NO_INTERVAL
from headroom.models.quality.labelled import HIGHEST_GRADE, Columns, LabelledPair
from headroom.models.quality.reading import read_relevance
from headroom.models.quality.scoring import scored
from headroom.models.terminal import table

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.api.data import Data
    from headroom.models.classifier import Classifier
    from headroom.models.quality.calibration import FittedCalibration


@dataclass(frozen=True)
class Calibrated:
    """A checkpoint whose scores are probabilities.

    path: its directory. document: the figures, as `headroom calibrate --json` prints them; of `metrics`, each
    has `before`, `after` and `change`, an `Interval` each.
    """

    path: Path
    document: Json

    def load(self, device: str = "auto", dtype: str = "auto") -> Classifier:
        """Return its classifier. device, dtype: "auto", or a name of torch's."""
        from headroom.models.classifier import Classifier

        return Classifier.load(self.path, device, dtype)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, a row for each metric: before, after, change, and the ends of its 95 %
        interval. Raises ModuleNotFoundError without pandas."""
        metrics = self.document["metrics"]
        rows = list(metrics.values())
        return frame(
            {
                "metric": list(metrics),
                "before": [row["before"].value for row in rows],
                "after": [row["after"].value for row in rows],
                "change": [row["change"].value for row in rows],
                "low": [row["change"].low for row in rows],
                "high": [row["change"].high for row in rows],
            }
        )

    @property
    def warnings(self) -> list[str]:
        """Return a sentence if the pairs do not show that the calibration is better."""
        if self.document["metrics"]["classwise_ece"]["change"].is_below(0):
            return []
        return [
            "the pairs do not show that the calibration error falls: the scores were calibrated already, or "
            "more pairs are needed"
        ]

    def __str__(self) -> str:
        return as_text(self.document)

    __repr__ = __str__


@errors_name_arguments()
def calibrate(
    clf: Classifier,
    data: Data,
    out: str | PathLike[str],
    *,
    query: str = "query",
    title: str = "title",
    grade: str = "grade",
    relevant: int | None = None,
) -> Calibrated:
    """Write a copy whose scores are probabilities: P(relevant), or one per grade.

    data: judged pairs; of a one-label model the grades are 0 and 1, or any if `relevant` says which is the
    lowest that counts as relevant. out: an empty or new directory. query, title, grade: the names of the
    data's columns.
    Raises ModelError for pairs that are too few or of one grade, or if `out` is not empty.
    """
    if clf.directory is None:
        raise ModelError("calibrate needs a classifier that was loaded from a directory or the hub")
    config = clf.config
    if config.is_graded and relevant is not None:
        raise ModelError("relevant: the model has grades; leave it out")
    check_range("relevant", relevant, 1, HIGHEST_GRADE, whole=True)
    directory = path_of("out", out, DIRECTORY)
    check_empty(directory)
    columns = Columns(query, title, grade)
    source = source_of(data, columns)
    pairs, lowest = read_relevance(source, config, columns, relevant)
    counted = None if config.is_graded else lowest
    return calibrated(clf, with_relevance(pairs, counted), counted, str(source), directory)


def with_relevance(pairs: Sequence[LabelledPair], lowest: int | None) -> list[LabelledPair]:
    """Return the pairs with the grades 0 and 1. lowest: the lowest relevant grade; None: as they are."""
    if lowest is None:
        return list(pairs)
    return [replace(pair, grade=int(pair.grade >= lowest)) for pair in pairs]


def calibrated(
    clf: Classifier,
    pairs: Sequence[LabelledPair],
    lowest: int | None,
    name: str,
    out: Path,
) -> Calibrated:
    """Calibrate a classifier on judged pairs and write the checkpoint.

    lowest: the lowest relevant grade of a one-label model, whose pairs have the grades 0 and 1. name: of the
    pairs' file.
    """
    import numpy as np

    from headroom.models.compress.calibrate import write_calibrated  # imports torch
    from headroom.models.quality.calibration import Calibration
    from headroom.models.quality.calibration import calibrate as fit_to

    assert clf.directory is not None
    logits = scored(clf, [(pair.query, pair.title) for pair in pairs]).logits.astype(np.float64)
    served = Calibration(clf.config.temperature, np.array(clf.config.bias))
    fit = fit_to(logits, pairs, served, name)
    document = {
        "schema": 1,
        "out": str(out),
        "model": clf.name,
        "data": name,
        "relevant_from_grade": lowest,
        **describe(fit, clf.config),
    }
    with new_directory(out) as draft:
        bias = fit.calibration.bias.tolist()
        write_calibrated(clf.directory, draft, fit.calibration.temperature, bias, clf.config)
        (draft / "metrics.json").write_bytes(metrics_file(document) + b"\n")
    return Calibrated(out, document)


def describe(fit: FittedCalibration, config: ModelConfig) -> Json:
    """Return a calibration and its figures before and after, as `--json` prints them."""
    from headroom.models.quality.calibration import reliability

    grades = range(fit.after.grades)
    return {
        "pairs": len(fit.after.truth),
        "queries": fit.after.queries,
        "labels": list(config.labels),
        "method": fit.method,
        "temperature": fit.calibration.temperature,
        "bias": fit.calibration.bias.tolist(),
        "metrics": reliability(fit.before, fit.after, is_graded=config.is_graded),
        "reliability": [
            {
                "grade": grade,
                "before": fit.before.reliability_bins(grade),
                "after": fit.after.reliability_bins(grade),
            }
            for grade in (grades if config.is_graded else grades[1:])
        ],
    }


def metrics_file(document: Json) -> bytes:
    """Return the content of metrics.json: figures of the calibrated model, which the service lists."""
    after = {name: values["after"].value for name, values in document["metrics"].items()}
    of_run = {name: value for name, value in document.items() if name not in ("schema", "out")}
    content: dict[str, Any] = {"schema": 1, "validation": after, "calibration": of_run}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def as_text(document: Json) -> str:
    """Return the map and each metric before and after as text for people, and the reliability diagram."""
    bias = ", ".join(number(one, sign=True) for one in document["bias"])
    is_graded = document["relevant_from_grade"] is None
    what = "probabilities of grades" if is_graded else "P(relevant)"
    lines = [
        f"{document['out']}: {what} from logits / {number(document['temperature'])} + ({bias})",
        "fitted on {pairs:,} pairs of {queries:,} queries; each fifth of them judged with what the others "
        "choose:".format(**document),
    ]
    rows = [["", "before", "after", "change"]]
    for name, values in document["metrics"].items():
        texts = (values[when].text(sign=when == "change") for when in ("before", "after", "change"))
        rows.append([f"  {name}", *(text.removesuffix(NO_INTERVAL) for text in texts)])
    lines.append(table(rows))
    diagram = document["reliability"][-1]
    named = document["labels"][-1] if is_graded else "relevant"
    rows = [[f"P({named})", "pairs", "mean P", f"share {named}"]]
    for row in diagram["after"]:
        ends = f"  {row['low']:.1f} to {row['high']:.1f}"
        rows.append([ends, f"{row['pairs']:,}", fixed(row["probability"]), fixed(row["share"])])
    return "\n".join([*lines, "after:", table(rows, numbers_from=1)])
