"""`headroom distil` teaches a small model from a large one, or from a column of scores."""

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.commands import options
from headroom.models.files import Json
from headroom.models.quality.bootstrap import NO_INTERVAL, Interval
from headroom.models.quality.labelled import Columns
from headroom.models.quality.metrics import NAMES
from headroom.models.terminal import Stages, ends_at_once, table, warn
from headroom.models.training.distil.job import Cut, Options, prepare

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
Layers = Annotated[int | None, typer.Option(min=1, help="Layers that the student keeps, spread evenly.")]
Heads = Annotated[int | None, typer.Option(min=1, help="Heads per layer that the student keeps.")]
Units = Annotated[
    int | None, typer.Option(min=1, help="Feed-forward units per layer that the student keeps.")
]
Test = Annotated[
    Path | None,
    typer.Option(
        help="Judged pairs to compare on; their queries are not trained on.  [default, for five grades: "
        "data/sample/test.jsonl.gz]"
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Steps of 64 pairs.  [default: 1,500, or one pass over the data]")
]
Minutes = Annotated[float | None, typer.Option(min=0.01, help="Train for so long, in place of --steps.")]
Rate = Annotated[
    float | None, typer.Option(min=1e-8, max=1.0, help="Peak learning rate.  [default: by the model's width]")
]
MaxTokens = Annotated[int, typer.Option(min=8, max=8192, help="Tokens after which a pair is cut.")]


def command(
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
    resamples: options.Resamples = 2000,
    seed: options.Seed = 0,
    device: options.Device = "auto",
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
    run(
        Options(
            data=data,
            out=out,
            teacher=teacher,
            scores=scores,
            model=model,
            cut=Cut(layers, heads, units),
            test=test,
            steps=steps,
            minutes=minutes,
            rate=rate,
            max_tokens=max_tokens,
            seed=seed,
            device=device,
            columns=Columns(query_column, title_column, grade_column, delimiter),
            resamples=resamples,
        ),
        as_json=as_json,
    )


@ends_at_once("headroom: stopped; the same command goes on from the last checkpoint")
def run(options: Options, *, as_json: bool) -> None:
    """Check the options, teach, and print what was learnt."""
    job = prepare(options)
    if job.survey.left_out:
        warn(f"{job.survey.left_out:,} pairs are left out, because their queries are in {job.test_name}")
    import transformers

    from headroom.models.training.distil.running import distil

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with contextlib.closing(Stages()) as stages:
        metrics = distil(job, stages)
    print(json.dumps(metrics) if as_json else f"{options.out}: {summary(metrics)}")


def summary(metrics: Json) -> str:
    """Return what a student is and what it learnt as text for people."""
    size = metrics["size"]
    teacher = size.get("teacher", size["before"])
    parts = [
        f"{size['student'][name]:,} of {teacher[name]:,} {name}" for name in ("layers", "heads", "units")
    ]
    megabytes = " of ".join(f"{one['bytes'] / 1e6:.1f} MB" for one in (size["student"], teacher))
    lines = [f"{', '.join(parts)}, {megabytes}; {metrics['steps']:,} steps, {metrics['pairs']:,} pairs"]
    if "quality" in metrics:
        lines.append("on {test_pairs:,} judged pairs of {test_queries:,} queries:".format(**metrics))
        lines.append(_quality_table(metrics["quality"]))
    agreement = metrics["agreement"]
    if agreement is not None:
        before, after, change = (_text(agreement[name], sign=name == "change") for name in _AGREEMENT)
        lines.append(
            f"order of {agreement['queries']:,} queries that were not trained on, Spearman with what taught: "
            f"{before} before, {after} after, change {change}"
        )
    return "\n".join([*lines, _speed(metrics["speed"])])


_AGREEMENT = ("before", "student", "change")


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
