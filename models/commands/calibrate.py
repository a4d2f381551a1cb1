"""`headroom calibrate` writes a copy of a checkpoint whose scores are probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headroom.models.checkpoint.config import ModelConfig, read_config
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.hub import locate
from headroom.models.commands import options
from headroom.models.quality.labelled import Columns, LabelledPair
from headroom.models.terminal import ends_at_once, warn

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
    order = options.label_names(label_order)
    config = read_config(locate(model), order)
    columns = Columns(query_column, title_column, grade_column, delimiter, queries, titles)
    pairs, lowest = read_pairs(data, config, columns, relevant)

    from headroom import Classifier  # imports torch, so it comes after the checks that do not need it
    from headroom.models.api.calibrated import calibrated

    clf = Classifier.load(model, device, dtype, label_order=order)
    made = calibrated(clf, pairs, lowest, str(data), out)
    print(options.as_indented(made.document) if as_json else made)
    for sentence in made.warnings:
        warn(sentence)


def read_pairs(
    data: Path, config: ModelConfig, columns: Columns, relevant: int | None
) -> tuple[list[LabelledPair], int | None]:
    """Return the judged pairs, and for a one-label model the lowest grade that counts as relevant; its pairs
    then have the grades 0 and 1. Raises ModelError if the pairs are too few or of one grade."""
    from headroom.models.api.calibrated import with_relevance
    from headroom.models.quality.calibration import check_pairs

    if config.is_graded and relevant is not None:
        raise typer.BadParameter("the model has grades; leave it out", param_hint="--relevant")
    pairs, lowest = options.read_judged(data, config, columns, relevant)
    counted = None if config.is_graded else lowest
    pairs = with_relevance(pairs, counted)
    check_pairs(pairs, str(data))
    return pairs, counted
