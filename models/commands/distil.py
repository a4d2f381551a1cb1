"""`headroom distil` teaches a small model from a large one, or from a column of scores."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.api.arguments import MIN_MINUTES
from headroom.models.api.taught import taught
from headroom.models.commands import options
from headroom.models.quality.labelled import Columns
from headroom.models.terminal import ends_at_once, warn
from headroom.models.training.distil.job import DistilOptions, Job, StudentSize

Data = Annotated[
    Path, typer.Option(help="Unjudged pairs: csv, tsv, jsonl or parquet of query,title, of any size.")
]
Teacher = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint or hub id that teaches, graded or with one label.  [default: the shipped one]"
    ),
]
Scores = Annotated[
    str | None,
    typer.Option(help="Column of --data whose numbers teach, such as an LLM's, in place of a model."),
]
Student = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint or hub id of the student.  [default: the teacher; if that is a decoder or a "
        "column, the shipped one]"
    ),
]
Layers = Annotated[
    int | None,
    typer.Option(min=1, help="Layers that the student keeps: those without which scores change most."),
]
Heads = Annotated[int | None, typer.Option(min=1, help="Heads per layer that the student keeps.")]
Units = Annotated[
    int | None, typer.Option(min=1, help="Feed-forward units per layer that the student keeps.")
]
Test = Annotated[
    Path | None,
    typer.Option(
        help=f"Judged pairs to compare on; their queries are not trained on. {options.SECOND}  [default, for "
        "five grades: data/sample/test.jsonl.gz]"
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Steps of 64 pairs.  [default: 1,500, or one pass over the data]")
]
Minutes = Annotated[float | None, typer.Option(min=MIN_MINUTES, help="Minutes to train, instead of --steps.")]
Rate = Annotated[
    float | None, typer.Option(min=1e-8, max=1.0, help="Peak learning rate.  [default: by the model's width]")
]
MaxTokens = Annotated[int, typer.Option(min=8, max=8192, help="Tokens after which a pair is cut.")]


def command(
    context: typer.Context,
    data: Data,
    out: options.NewDirectory,
    teacher: Teacher = None,
    scores: Scores = None,
    model: Student = None,
    layers: Layers = None,
    heads: Heads = None,
    units: Units = None,
    test: Test = None,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    steps: Steps = None,
    minutes: Minutes = None,
    rate: Rate = None,
    max_tokens: MaxTokens = 128,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    label_order: options.LabelOrder = None,
    as_json: options.AsJson = False,
) -> None:
    """Teach a small model the scores of a large one, or those in a column, on pairs that nobody judged.

    Prints what the student lost to its teacher and gained, with 95 % intervals, and the speed of both. A run
    that is stopped (Ctrl-C) loses a minute of work: the same command goes on.

    Example: headroom distil --data pairs.csv --layers 6 --out ./half

    Example: headroom distil --teacher Qwen/Qwen3-Reranker-0.6B --data pairs.parquet --layers 6 --out ./taught
    """
    if steps is not None and minutes is not None:
        raise typer.BadParameter("give one of --steps and --minutes", param_hint="--minutes")
    if test is None:
        options.refuse_unused(context, "it needs --test", "grade_column")
    run(
        DistilOptions(
            data=data,
            out=out,
            teacher=teacher,
            scores=scores,
            model=model,
            cut=StudentSize(layers, heads, units),
            test=test,
            steps=steps,
            minutes=minutes,
            rate=rate,
            max_tokens=max_tokens,
            seed=seed,
            device=device,
            columns=Columns(query_column, title_column, grade_column, delimiter),
            teacher_labels=options.label_names(label_order),
        ),
        as_json=as_json,
    )


@ends_at_once("headroom: stopped; the same command goes on from the last checkpoint")
def run(options: DistilOptions, *, as_json: bool) -> None:
    """Check the options, teach, and print what was learnt."""
    student = taught(options, _say_what_is_left_out)
    print(json.dumps(student.metrics) if as_json else student)


def _say_what_is_left_out(job: Job) -> None:
    if job.survey.left_out:
        warn(f"{job.survey.left_out:,} pairs are left out, because their queries are in {job.test_name}")
