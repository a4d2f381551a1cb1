"""`headroom study`: find out which heads of your checkpoint matter, on your labelled pairs."""

from __future__ import annotations

import contextlib
import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.api.arguments import MARGINS, SEEDS, SPEEDUPS, STEPS
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import locate
from headroom.models.commands import options
from headroom.models.quality.labelled import Columns
from headroom.models.study import TAKES, Kind, Part, pairs, removable_parts
from headroom.models.study.page import check_directory
from headroom.models.terminal import Stages, ends_at_once, waiting

Out = Annotated[
    Path, typer.Option(help="Directory of the report, in place of an earlier one of the same kind.")
]
Holdout = Annotated[
    Path | None,
    typer.Option(
        help=f"For `search` and `all`: pairs of other queries to test the masks on. {options.SECOND}"
    ),
]
Split = Annotated[
    bool,
    typer.Option(
        "--split",
        help="For `search` and `all`, in place of --holdout: hold out queries of --data, as many as the "
        "margin needs.",
    ),
]
Margin = Annotated[float, typer.Option(min=MARGINS[0], max=MARGINS[1], help="Accepted loss in each metric.")]
Quick = Annotated[bool, typer.Option("--quick", help="Give a rough answer, in some minutes per kind.")]
What = Annotated[
    str,
    typer.Option(
        help="For `search`: parts to remove, of heads,units,layers. All but heads alone: by measured time."
    ),
]
Speedup = Annotated[
    float | None,
    typer.Option(
        min=SPEEDUPS[0],
        max=SPEEDUPS[1],
        help="For `search` by time: how many times as fast.  [default: what the margin allows]",
    ),
]
PartOption = Annotated[
    Part,
    typer.Option(
        help="For `single`: cross studies the heads of the query generator's encoder–decoder attention."
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=SEEDS[0], max=SEEDS[1], help="For `initialisation`: starts of each kind, trained one by one."
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        min=STEPS[0],
        max=STEPS[1],
        help="For `initialisation`: steps of each training.  [default: 100, or 20 with --quick]",
    ),
]


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def command(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="Which question to ask; all: every one, in one report.")],
    data: options.Data,
    out: Out,
    model: options.Model = None,
    holdout: Holdout = None,
    split: Split = False,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    queries: options.Queries = None,
    titles: options.Titles = None,
    margin: Margin = 0.02,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    label_order: options.LabelOrder = None,
    what: What = "heads",
    speedup: Speedup = None,
    seeds: Seeds = 5,
    steps: Steps = None,
    part: PartOption = "encoder",
    quick: Quick = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json on standard output.")] = False,
) -> None:
    """Find out which attention heads matter. Every effect comes with its 95 % interval. A model with one
    score is judged by the order of its titles.

    If a study is stopped (Ctrl-C), the same command goes on where it stopped.

    Example: headroom study single --data data/sample/calibration.jsonl.gz --out runs/single

    Example: headroom study search --data judged.csv --split --margin 0.05 --out runs/search

    Example: headroom study search --what heads,units,layers --speedup 2 --data D --holdout H --out runs/fast
    """
    _check_options(context, kind)
    if split and holdout is not None:
        raise typer.BadParameter("give one of --holdout and --split", param_hint="--split")
    parts = _parts(what)
    check_directory(out, kind)
    labels = options.label_names(label_order)
    config = read_config(locate(model), labels)
    columns = Columns(query_column, title_column, grade_column, delimiter, queries, titles)
    with waiting("reading the pairs"):
        judged, held_out = pairs.read_both(kind, config, data, holdout, columns=columns, seed=seed)
    if split:
        judged, held_out = pairs.split(judged, margin, seed)

    with waiting("loading the model"):
        # These import torch, so they come after the checks that do not need it.
        from headroom.models.classifier import Classifier
        from headroom.models.study.kinds import ask
        from headroom.models.study.report_files import write

        clf = Classifier.load(model, device, dtype, label_order=labels)
        if part == "cross":
            clf.checked_generator()
    with contextlib.closing(Stages()) as progress:
        study, result = ask(
            kind,
            clf,
            judged,
            held_out,
            progress=progress,
            out=out,
            quick=quick,
            seed=seed,
            margin=margin,
            what=parts,
            speedup=speedup,
            seeds=seeds,
            steps=steps,
            part=part,
        )
        content = write(study, result)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    print(f"{textwrap.fill(content['verdict'], 100)}\n\n{out / 'report.html'}")


def _check_options(context: typer.Context, kind: Kind) -> None:
    """Raise BadParameter for an option that does nothing for a kind of study."""
    unused = [option for option, kinds in TAKES.items() if kind not in kinds]
    if "holdout" in unused:
        unused.append("split")
    options.refuse_unused(context, f"`study {kind}` has no use for it", *unused)


def _parts(what: str) -> tuple[str, ...]:
    """Return what may go, in a fixed order. Refuses names that do not exist."""
    try:
        return removable_parts(what)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--what'") from None
