"""`headroom calibrate` writes a copy of a checkpoint whose scores are probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from headroom.models.checkpoint.config import ModelConfig, read_config
from headroom.models.checkpoint.files import check_empty, new_directory
from headroom.models.checkpoint.hub import locate
from headroom.models.commands import options
from headroom.models.files import Json
from headroom.models.numbers import fixed, number
from headroom.models.quality.bootstrap import NO_INTERVAL
from headroom.models.quality.labelled import Columns, LabelledPair
from headroom.models.quality.scoring import scored
from headroom.models.terminal import ends_at_once, table, warn

if TYPE_CHECKING:
    from headroom import Classifier
    from headroom.models.quality.calibration import Calibrated

Data = Annotated[
    Path,
    typer.Option(help="Judged pairs: csv, tsv, jsonl or parquet of query,title,grade; one label: 0 or 1."),
]
Relevant = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=options.HIGHEST_GRADE,
        help="The lowest grade that counts as relevant, for a one-label model and pairs of more grades.",
    ),
]


@ends_at_once("headroom: stopped; nothing is written")
def command(
    data: Data,
    out: options.NewDirectory,
    model: options.Model = None,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    queries: options.Queries = None,
    titles: options.Titles = None,
    relevant: Relevant = None,
    resamples: options.Resamples = 2000,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    label_order: options.LabelOrder = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a copy whose scores are probabilities: P(relevant), or one per grade.

    Fits them to judged pairs and prints how reliable they are before and after, on queries that had no part
    in the fit. The order of a one-label model's titles stays exactly.

    Example: headroom calibrate --model cross-encoder/ms-marco-MiniLM-L6-v2 --data judged.csv --out ./fair
    """
    check_empty(out)
    source = locate(model)
    order = options.label_names(label_order)
    config = read_config(source, order)
    columns = Columns(query_column, title_column, grade_column, delimiter, queries, titles)
    pairs, lowest = read_pairs(data, config, columns, relevant)

    from headroom import Classifier  # imports torch, so it comes after the checks that do not need it
    from headroom.models.compress.calibrate import write_calibrated

    clf = Classifier.load(model, device, dtype, label_order=order)
    fit = calibrated(clf, pairs, str(data))
    document = {
        "schema": 1,
        "out": str(out),
        "model": clf.name,
        "data": str(data),
        "relevant_from_grade": lowest,
        **describe(fit, config, resamples),
    }
    with new_directory(out) as draft:
        write_calibrated(source, draft, fit.calibration.temperature, fit.calibration.bias.tolist(), config)
        (draft / "metrics.json").write_bytes(metrics_file(document) + b"\n")
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() if as_json else as_text(document))
    if not document["metrics"]["classwise_ece"]["change"].is_below(0):
        warn(
            "the pairs do not show that the calibration error falls: the scores were calibrated already, or "
            "more pairs are needed"
        )


def read_pairs(
    data: Path, config: ModelConfig, columns: Columns, relevant: int | None
) -> tuple[list[LabelledPair], int | None]:
    """Return the judged pairs, and for a one-label model the lowest grade that counts as relevant; its pairs
    then have the grades 0 and 1. Raises ModelError if the pairs are too few or of one grade."""
    from headroom.models.quality.calibration import check_pairs

    if config.is_graded and relevant is not None:
        raise typer.BadParameter("the model has grades; leave it out", param_hint="--relevant")
    pairs, lowest = options.read_judged(data, config, columns, relevant)
    if not config.is_graded:
        pairs = [replace(pair, grade=int(pair.grade >= lowest)) for pair in pairs]
    check_pairs(pairs, str(data))
    return pairs, None if config.is_graded else lowest


def calibrated(clf: Classifier, pairs: Sequence[LabelledPair], name: str) -> Calibrated:
    """Return a model's calibration on judged pairs. name: of their file."""
    import numpy as np

    from headroom.models.quality.calibration import Calibration, calibrate

    logits = scored(clf, [(pair.query, pair.title) for pair in pairs]).logits.astype(np.float64)
    served = Calibration(clf.config.temperature, np.array(clf.config.bias))
    return calibrate(logits, pairs, served, name)


def describe(fit: Calibrated, config: ModelConfig, resamples: int) -> Json:
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
        "metrics": reliability(fit.before, fit.after, is_graded=config.is_graded, resamples=resamples),
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
