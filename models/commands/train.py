"""`headroom train` fine-tunes a graded classifier on the user's own labelled pairs."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from models.commands.options import Data, Delimiter, Device, GradeColumn, QueryColumn, TitleColumn
from models.commands.terminal import ends_at_once, table
from models.numbers import fixed

Out = Annotated[Path, typer.Option(help="Checkpoint directory to write; it must be empty or new.")]
Validation = Annotated[
    Path | None,
    typer.Option(help="Pairs of other queries to select and calibrate with.  [default: a tenth]"),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint to start from, of any family: a directory or hub id.  [default: the shipped one]"
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Names of the grades, least relevant first, comma-separated.  [default:"
        " irrelevant,related,partial,close,exact]"
    ),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Epochs.  [default: 3, or enough for 150 steps]")
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=1e-8, max=1.0, help="Peak learning rate.  [default: 5e-5 for width 768, 1e-4 for width 384]"
    ),
]
MaxTokens = Annotated[int, typer.Option(min=8, max=512, help="Tokens after which a pair is cut.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print metrics.json.")]


def command(
    data: Data,
    out: Out,
    validation: Validation = None,
    model: Base = None,
    query_column: QueryColumn = "query",
    title_column: TitleColumn = "title",
    grade_column: GradeColumn = "grade",
    delimiter: Delimiter = ",",
    labels: Labels = None,
    epochs: Epochs = None,
    rate: Rate = None,
    max_tokens: MaxTokens = 128,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fine-tune a graded classifier. Keeps the best epoch on the validation queries and calibrates it.

    Progress goes to standard error. A run that is stopped (Ctrl-C) loses the work of some seconds, with a
    large model of up to two minutes: the same command goes on.

    Example: headroom train --data judgments.csv --model bert-base-uncased --out ./mine
    """
    from models.quality.labelled import Columns
    from models.training.job import GRADES, Options, prepare

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    job = prepare(
        Options(
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
            columns=Columns(query_column, title_column, grade_column, delimiter),
        )
    )
    with ends_at_once("headroom: stopped; the same command goes on from the last checkpoint"):
        import transformers

        from models.training.tuning import tune

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        metrics = tune(job)
    show(metrics, out, as_json)


def show(metrics: dict[str, Any], out: Path, as_json: bool) -> None:
    """Print what the training run measured, and a warning if it did not improve the model."""
    if as_json:
        print(json.dumps(metrics))
    else:
        print(f"{out}: {summary(metrics)}")
    if not metrics["better"]:
        print(
            "headroom: training did not improve the model on the validation pairs; give more or other "
            "pairs, another --rate, or a --validation file with more queries",
            file=sys.stderr,
        )


def summary(metrics: dict[str, Any]) -> str:
    """Return the training run and its metrics as text for people."""
    loss, queries = metrics["loss"], metrics["validation_queries"]
    steps, epochs = _counted(metrics["steps"], "step"), _counted(metrics["epochs"], "epoch")
    lines = [
        f"{steps} in {epochs}, learning rate up to {metrics['rate']:.2g}; "
        f"epoch {metrics['best_epoch']} was the best",
        *(
            f"loss on the {pairs} pairs: {loss[pairs]['before']:.3f} → {loss[pairs]['after']:.3f}"
            for pairs in ("training", "validation")
        ),
        f"on the {queries} validation {'query' if queries == 1 else 'queries'}:",
    ]
    rows, without_interval = [], []
    for name, value in metrics["validation"].items():
        low, high = (metrics["validation_intervals"][name][end] for end in ("low", "high"))
        if low is None:
            without_interval.append(name)
        change = f"{fixed(metrics['validation_before'][name])} → {fixed(value)}"
        rows.append([f"  {name}", change, "" if low is None else f"({fixed(low)} to {fixed(high)})"])
    lines.append(table(rows))
    if without_interval:
        lines.append(f"  no 95 % interval for {', '.join(without_interval)}: too few queries")
    return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
