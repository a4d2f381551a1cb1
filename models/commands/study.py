"""`headroom study`: find out which heads of your checkpoint matter, on your labelled pairs."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from models.study.base import Judged
    from models.study.runner import Runner
    from models.study.study import Effort, Study

CHOOSES_NOTHING = (
    "headroom: without --holdout, a search shows what each mask costs and chooses none, because the data "
    "that made the masks cannot also judge them"
)


class Kind(StrEnum):
    """The questions that docs/head-studies.md answers for the shipped model."""

    single = "single"
    random = "random"
    layers = "layers"
    roles = "roles"
    similarity = "similarity"
    search = "search"
    all = "all"


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
MaxPairs = Annotated[
    int,
    typer.Option(
        min=100, help="Largest number of pairs to use; from a larger file, whole queries are drawn."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
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
AsJson = Annotated[bool, typer.Option("--json", help="Print report.json on standard output.")]


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
    max_pairs: MaxPairs = 20_000,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    what: What = "heads",
    speedup: Speedup = None,
    recover: Recover = 0,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Find out which attention heads matter. Every effect comes with its 95 % interval.

    If a study is stopped (Ctrl-C), the same command goes on where it stopped.

    Example: headroom study single --data data/sample/calibration.jsonl.gz --out runs/single

    Example: headroom study search --what heads,units,layers --speedup 2 --data D --holdout H --out runs/fast
    """
    from models.quality.labelled import Columns

    parts = _parts(kind, what, speedup, recover)
    files = (data,) if holdout is None else (data, holdout)
    columns = Columns(query_column, title_column, grade_column, delimiter)
    _check(kind, out, files, columns, model, device, dtype)
    _tell_if_nothing_is_chosen(kind, holdout, speedup)

    from models.study.study import FULL, QUICK, QUICK_ALL, Study

    clf = _graded(model, device, dtype)
    effort = FULL if not quick else QUICK_ALL if kind is Kind.all else QUICK
    judged, held_out = _read(files, columns, clf, effort, max_pairs, seed)
    with _runners(clf, model, out) as (runner, stages):
        study = Study(
            classifier=clf,
            data=judged,
            runner=runner(judged),
            out=out,
            holdout=held_out,
            holdout_runner=None if held_out is None else runner(held_out),
            seed=seed,
            margin=margin,
            model=model,
            what=parts,
            speedup=speedup,
            recover_minutes=recover,
            progress=stages,
            effort=effort,
        )
        print(_run(kind, study, as_json))


def _parts(kind: Kind, what: str, speedup: float | None, recover: float) -> tuple[str, ...]:
    """Return what may go, in a fixed order. Refuses names that do not exist, and options that do nothing."""
    valid = ("heads", "units", "layers")
    names = [name.strip() for name in what.split(",")]
    if unknown := [name for name in names if name not in valid]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(valid)}", param_hint="'--what'")
    parts = tuple(name for name in valid if name in names)
    given = {"--what": parts != ("heads",), "--speedup": speedup, "--recover": recover}
    if kind is not Kind.search and (options := [name for name, value in given.items() if value]):
        raise typer.BadParameter(f"only `study search` takes {options[0]}", param_hint=f"'{options[0]}'")
    if recover and not (given["--what"] or speedup):
        raise typer.BadParameter("it needs --speedup, or --what with units or layers", param_hint="'--what'")
    return parts


def _check(
    kind: Kind,
    out: Path,
    files: Sequence[Path],
    columns: Columns,
    model: str | None,
    device: str,
    dtype: str,
) -> None:
    """Refuse wrong arguments before torch is imported, which takes seconds."""
    if kind in (Kind.roles, Kind.all) and importlib.util.find_spec("jieba") is None:
        need = "needs jieba, which finds the words of Chinese text"
        raise ModuleNotFoundError(f"headroom study {kind} {need}: {how_to_install('study')}")
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from models.device import check_device_name, check_dtype_name
    from models.quality.labelled import iter_labelled
    from models.study.page import check_directory

    check_directory(out, kind.value)
    check_device_name(device)
    check_dtype_name(dtype)
    config = read_config(locate(model))
    for file in files if config.is_graded else ():
        next(iter_labelled(file, grades=len(config.labels), labels=config.labels, columns=columns))


def _tell_if_nothing_is_chosen(kind: Kind, holdout: Path | None, speedup: float | None) -> None:
    if kind in (Kind.search, Kind.all) and holdout is None and speedup is None:
        print(CHOOSES_NOTHING, file=sys.stderr, flush=True)


def _graded(model: str | None, device: str, dtype: str) -> Classifier:
    """Load the model. Raises ModelError if it has no grades."""
    from models import Classifier, ModelError  # imports torch, so it comes after the checks without it

    clf = Classifier.load(model, device, dtype)
    if not clf.grades:
        raise ModelError(f"{clf.name} gives one score and no grades; a study needs a graded classifier")
    return clf


@contextlib.contextmanager
def _runners(
    clf: Classifier, model: str | None, out: Path
) -> Iterator[tuple[Callable[[Judged], Runner], Stages]]:
    """Yield a function that makes the runner of graded pairs, and the progress that the runners show."""
    from models.checkpoint.hub import locate
    from models.study.runner import Runner, identity_of

    identity = identity_of(locate(model), clf)
    with contextlib.closing(Stages()) as stages:
        yield partial(Runner, clf, cache=out / "cache", identity=identity, progress=stages), stages


def _read(
    files: Sequence[Path], columns: Columns, clf: Classifier, effort: Effort, max_pairs: int, seed: int
) -> tuple[Judged, Judged | None]:
    """Read the files, check that they share no query, and cut them to the effort."""
    from models.study import inputs
    from models.study.study import QUERY_TITLES

    read = partial(inputs.read_judged, grades=len(clf.grades), labels=clf.grades, columns=columns)
    judged = [read(file, max_pairs=max_pairs, seed=seed) for file in files]
    for other in judged[1:]:
        inputs.check_apart(judged[0], other)
    sizes = (effort.pairs, effort.holdout_pairs)
    judged = [
        one if size is None else inputs.roughly(one, size, QUERY_TITLES, seed)
        for one, size in zip(judged, sizes, strict=False)
    ]
    return judged[0], judged[1] if len(judged) > 1 else None


def _run(kind: Kind, study: Study, as_json: bool) -> str:
    """Run the study, write its report and return the text to print, in lines of at most 100 characters."""
    import json
    import textwrap

    from models.study import kinds, report_files

    result = kinds.run(kind.value, study)
    content = report_files.write(study, result)
    if as_json:
        return json.dumps(content, ensure_ascii=False)
    texts = [result.verdict] if kind is Kind.all else [result.verdict, result.conclusion]
    return "\n\n".join(
        [*(textwrap.fill(text, 100) for text in texts if text), str(study.out / "report.html")]
    )
