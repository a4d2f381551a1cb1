"""`headroom quantize` writes an int8 copy of a checkpoint and prints what it costs and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headroom.models.api.quantized import quantized
from headroom.models.commands import options
from headroom.models.quality.labelled import Columns
from headroom.models.terminal import ends_at_once, warn

Data = Annotated[
    Path | None,
    typer.Option(help="Your own pairs to calibrate with.  [default: data/sample/calibration.jsonl.gz]"),
]
Test = Annotated[
    Path | None,
    typer.Option(
        help=f"Judged pairs to measure the loss on. {options.SECOND}  [default, for five grades, or one "
        "label without --data: data/sample/test.jsonl.gz]"
    ),
]


@ends_at_once("headroom: stopped; nothing is written")
def command(
    context: typer.Context,
    out: options.NewDirectory,
    model: options.Model = None,
    data: Data = None,
    test: Test = None,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    label_order: options.LabelOrder = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a copy with 8-bit weights and activations. It is smaller, and on most CPUs faster; the command
    measures what it gains and loses on yours.

    Example: headroom quantize --out ./int8 && headroom serve --model ./int8

    Example: headroom quantize --model ./mine --data traffic.csv --test judged.csv --out ./mine-int8
    """
    if test is None:
        options.refuse_unused(context, "it needs --test", "grade_column")
    if data is None and test is None:
        of_files = ("query_column", "title_column", "delimiter")
        options.refuse_unused(context, "it needs --data or --test", *of_files)
    columns = Columns(query_column, title_column, grade_column, delimiter)
    made = quantized(model, out, data, test, columns, options.label_names(label_order))
    print(options.as_indented(made.document) if as_json else made)
    for sentence in made.warnings:
        warn(sentence)
