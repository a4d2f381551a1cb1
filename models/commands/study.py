"""`headroom study`: find out which heads of your checkpoint matter, on your labelled pairs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from models.commands.options import (
    Data,
    Delimiter,
    Device,
    Dtype,
    GradeColumn,
    Model,
    QueryColumn,
    TitleColumn,
)
from models.commands.terminal import Stages, ends_at_once
from models.errors import how_to_install

if TYPE_CHECKING:
    from models import Classifier
    from models.quality.labelled import Columns
    from models.study.pairs import Judged
    from models.study.study import Effort


Kind = Literal["single", "random", "layers", "roles", "similarity", "search", "all"]
"""The questions that docs/head-studies.md answers for the shipped model."""

Out = Annotated[
    Path,
    typer.Option(
        help="Directory for report.md, report.html, report.json and plots; each kind needs one of its own. "
        "An earlier report of the same kind is replaced."
    ),
]
Holdout = Annotated[
    Path | None, typer.Option(help="Pairs of other queries, on which `search` tests its masks.")
]
Margin = Annotated[
    float,
    typer.Option(min=0.001, max=0.5, help="Largest fall of accuracy, QWK or NDCG@10 that a mask may cost."),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Give a rough answer from few pairs and draws: a minute or two per kind."),
]
What = Annotated[
    str, typer.Option(help="For `search`: what may go, some of heads,units,layers; more than heads: by time.")
]
Speedup = Annotated[
    float | None,
    typer.Option(
        min=1.05,
        max=20,
        help="For `search`: how many times as fast the network is to be; parts then go by time."
        "  [default: as fast as the margin allows]",
    ),
]
Recover = Annotated[
    float,
    typer.Option(
        min=0, max=600, help="For `search` by time: minutes of distillation from the intact model afterwards."
    ),
]


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def command(
    kind: Annotated[Kind, typer.Argument(help="Which question to ask; all: every one, in one report.")],
    data: Data,
    out: Out,
    model: Model = None,
    holdout: Holdout = None,
    query_column: QueryColumn = "query",
    title_column: TitleColumn = "title",
    grade_column: GradeColumn = "grade",
    delimiter: Delimiter = ",",
    margin: Margin = 0.02,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    what: What = "heads",
    speedup: Speedup = None,
    recover: Recover = 0,
    quick: Quick = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json on standard output.")] = False,
) -> None:
    """Find out which attention heads matter. Every effect comes with its 95 % interval.

    If a study is stopped (Ctrl-C), the same command goes on where it stopped.

    Example: headroom study single --data data/sample/calibration.jsonl.gz --out runs/single

    Example: headroom study search --what heads,units,layers --speedup 2 --data D --holdout H --out runs/fast
    """
    parts = _parts(kind, what, speedup, recover)
    if kind in ("roles", "all") and importlib.util.find_spec("jieba") is None:
        need = "needs jieba, which finds the words of Chinese text"
        raise ModuleNotFoundError(f"headroom study {kind} {need}: {how_to_install('study')}")
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from models.errors import ModelError
    from models.quality.labelled import Columns, iter_labelled
    from models.study.page import check_directory

    check_directory(out, kind)
    config = read_config(locate(model))
    if not config.is_graded:
        raise ModelError(f"{locate(model)} gives one score and no grades; a study needs a graded classifier")
    columns = Columns(query_column, title_column, grade_column, delimiter)
    files = [file for file in (data, holdout) if file is not None]
    for file in files:
        next(iter_labelled(file, grades=len(config.labels), labels=config.labels, columns=columns))

    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from models.study import kinds, report_files
    from models.study.runner import Runner, identity_of
    from models.study.study import FULL, QUICK, QUICK_ALL, Study

    clf = Classifier.load(model, device, dtype)
    effort = FULL if not quick else QUICK_ALL if kind == "all" else QUICK
    judged = _read(files, columns, clf, effort, seed)
    identity = identity_of(locate(model), clf)
    with contextlib.closing(Stages()) as progress:
        runners = [Runner(clf, one, out / "cache", identity, progress) for one in judged]
        study = Study(
            classifier=clf,
            data=judged[0],
            runner=runners[0],
            out=out,
            holdout=judged[1] if holdout else None,
            holdout_runner=runners[1] if holdout else None,
            seed=seed,
            margin=margin,
            model=model,
            what=parts,
            speedup=speedup,
            recover_minutes=recover,
            progress=progress,
            effort=effort,
        )
        result = kinds.run(kind, study)
        content = report_files.write(study, result)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    print(f"{textwrap.fill(result.verdict, 100)}\n\n{out / 'report.html'}")


def _parts(kind: Kind, what: str, speedup: float | None, recover: float) -> tuple[str, ...]:
    """Return what may go, in a fixed order. Refuses names that do not exist, and options that do nothing."""
    valid = ("heads", "units", "layers")
    names = [name.strip() for name in what.split(",")]
    if unknown := [name for name in names if name not in valid]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(valid)}", param_hint="'--what'")
    parts = tuple(name for name in valid if name in names)
    given = {"--what": parts != ("heads",), "--speedup": speedup, "--recover": recover}
    if kind != "search" and (options := [name for name, value in given.items() if value]):
        raise typer.BadParameter(f"only `study search` takes {options[0]}", param_hint=f"'{options[0]}'")
    if recover and not (given["--what"] or speedup):
        raise typer.BadParameter("it needs --speedup, or --what with units or layers", param_hint="'--what'")
    return parts


def _read(
    files: Sequence[Path], columns: Columns, clf: Classifier, effort: Effort, seed: int
) -> list[Judged]:
    """Read the files, check that they share no query, and cut them to the effort."""
    from models.study import pairs
    from models.study.study import QUERY_TITLES

    read = partial(pairs.read_judged, grades=len(clf.grades), labels=clf.grades, columns=columns)
    judged = [read(file, seed=seed) for file in files]
    if len(judged) > 1:
        pairs.check_apart(*judged)
    return [
        one if size is None else pairs.roughly(one, size, QUERY_TITLES, seed)
        for one, size in zip(judged, (effort.pairs, effort.holdout_pairs), strict=False)
    ]
