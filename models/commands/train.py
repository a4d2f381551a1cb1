"""`headroom train` fine-tunes a graded classifier on the user's own labelled pairs."""

import json
import logging
import math
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.commands import options
from headroom.models.files import Json
from headroom.models.numbers import fixed
from headroom.models.quality.bootstrap import MIN_QUERIES, NO_INTERVAL, Interval
from headroom.models.quality.labelled import Columns
from headroom.models.terminal import ends_at_once, table, warn
from headroom.models.training.job import GRADES, TrainingOptions, prepare

Validation = Annotated[
    Path | None,
    typer.Option(help=f"Pairs of other queries to calibrate with. {options.SECOND}  [default: a tenth]"),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Names of the grades, least relevant first.  [default: irrelevant,related,partial,close,exact]"
    ),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Epochs.  [default: 3, or enough for 150 steps]")
]
Rate = Annotated[
    float | None, typer.Option(min=1e-8, max=1.0, help="Peak learning rate.  [default: by the model's width]")
]
MaxTokens = Annotated[int, typer.Option(min=8, max=512, help="Tokens after which a pair is cut.")]


def command(
    data: options.Data,
    out: options.NewDirectory,
    validation: Validation = None,
    model: options.Model = None,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    queries: options.Queries = None,
    titles: options.Titles = None,
    labels: Labels = None,
    epochs: Epochs = None,
    rate: Rate = None,
    max_tokens: MaxTokens = 128,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Fine-tune a graded classifier. Keeps the best epoch on the validation queries and calibrates it.

    Progress goes to standard error. A run that is stopped (Ctrl-C) loses the work of some seconds, with a
    large model of up to two minutes: the same command goes on.

    Example: headroom train --data judgments.csv --model bert-base-uncased --out ./mine
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    run = prepare(
        TrainingOptions(
            data=data,
            out=out,
            validation=validation,
            base=model,
            labels=GRADES if labels is None else tuple(name.strip() for name in labels.split(",")),
            epochs=epochs,
            rate=rate,
            max_tokens=max_tokens,
            seed=seed,
            device=device,
            columns=Columns(query_column, title_column, grade_column, delimiter, queries, titles),
        )
    )
    with ends_at_once("headroom: stopped; the same command goes on from the last checkpoint"):
        import transformers

        from headroom.models.training.tuning import tune

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        metrics = tune(run)
    print(json.dumps(metrics) if as_json else f"{out}: {summary(metrics)}")
    if not metrics["better"]:
        warn(
            "the validation queries do not show that the training improved the model; give more or other "
            "pairs, another --rate, or a --validation file with more queries"
        )


def summary(metrics: Json) -> str:
    """Return each metric before and after the training, and its change, as text for people."""
    rows = [["", "before", "after", "change"]]
    for name, before in metrics["validation_before"].items():
        values = (
            math.nan if value is None else value for value in metrics["validation_change"][name].values()
        )
        change = Interval(*values).text(sign=True).removesuffix(NO_INTERVAL)
        rows.append([f"  {name}", fixed(before), fixed(metrics["validation"][name]), change])
    lines = [
        f"kept epoch {metrics['best_epoch']} of {metrics['epochs']}, the best on "
        f"{metrics['validation_queries']} validation queries. No figure is of queries that chose: each half "
        "of them is measured with the epoch and the temperature that the other half chooses:",
        table(rows),
    ]
    if metrics["validation_change"]["accuracy"]["low"] is None:
        lines.append(f"no intervals: fewer than {MIN_QUERIES} validation queries")
    return "\n".join(lines)
