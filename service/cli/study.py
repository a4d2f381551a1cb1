"""`headroom study`: find out which heads of your checkpoint matter, on your labelled pairs."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.interrupt import ends_at_once
from service.cli.options import Data, Device, Dtype, Model

if TYPE_CHECKING:
    from models import Classifier
    from models.study.base import Judged
    from models.study.effort import Effort
    from models.study.runner import Map
    from models.study.study import Study

NEEDED = ("matplotlib",)
"""The packages that the extra [study] installs."""


class Kind(StrEnum):
    """The questions that docs/head-studies.md answers for the shipped model."""

    single = "single"
    random = "random"
    layers = "layers"
    roles = "roles"
    similarity = "similarity"
    search = "search"
    all = "all"


Out = Annotated[Path, typer.Option(help="Directory for report.md, report.html, report.json and plots.")]
Holdout = Annotated[
    Path | None, typer.Option(help="Pairs of other queries, on which `search` tests its masks.")
]
Peer = Annotated[
    str | None, typer.Option(help="The same model from another training seed, for `similarity`.")
]
Margin = Annotated[
    float,
    typer.Option(min=0.001, max=0.5, help="Largest fall of accuracy, QWK or NDCG@10 that counts as no loss."),
]
MaxPairs = Annotated[
    int,
    typer.Option(
        min=100, help="Largest number of pairs to use; from a larger file, whole queries are drawn."
    ),
]
Resamples = Annotated[int, typer.Option(min=200, max=20_000, help="Number of bootstrap resamples.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Give a rough answer from few pairs and draws: a minute or two per kind."),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Spread the masks over a Ray cluster (RAY_ADDRESS), or one started here."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print report.json on standard output.")]


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def command(
    kind: Annotated[Kind, typer.Argument(help="Which question to ask; all: every one, in one report.")],
    data: Data,
    out: Out,
    model: Model = None,
    holdout: Holdout = None,
    peer: Peer = None,
    margin: Margin = 0.02,
    max_pairs: MaxPairs = 20_000,
    resamples: Resamples = 2000,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quick: Quick = False,
    use_ray: Ray = False,
    as_json: AsJson = False,
) -> None:
    """Find out which attention heads matter; every effect comes with its 95 % interval.

    If a study is stopped (Ctrl-C), the same command goes on where it stopped.

    Example: headroom study single --data data/sample/calibration.jsonl.gz --out runs/single
    """
    _check(data, holdout, model, device, dtype)
    from functools import partial

    from models import Classifier
    from models.checkpoint.hub import locate
    from models.study.runner import Runner, identity_of
    from models.study.study import Study

    clf = _graded(model, device, dtype)
    effort = _effort(kind, quick)
    judged, held_out = _read(data, holdout, clf, effort, max_pairs, seed)
    bar = Bar()
    with _cluster(model, clf, use_ray) as remote:
        identity = identity_of(locate(model), clf)
        runner = partial(Runner, clf, cache=out / "cache", identity=identity, progress=bar, remote=remote)
        study = Study(
            classifier=clf,
            data=judged,
            runner=runner(judged),
            out=out,
            holdout=held_out,
            holdout_runner=None if held_out is None else runner(held_out),
            seed=seed,
            resamples=min(resamples, effort.resamples),
            margin=margin,
            model=model,
            peer=None if peer is None else Classifier.load(peer, device, dtype),
            progress=bar,
            effort=effort,
        )
        # The speed of a cluster is not that of this machine, so only a study here gets a forecast.
        text = _run(kind, study, None if use_ray else bar, as_json)
    bar.close()
    print(text)


def _check(data: Path, holdout: Path | None, model: str | None, device: str, dtype: str) -> None:
    """Refuse wrong arguments before torch is imported, which takes seconds."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"headroom study needs {', '.join(missing)}; pip install 'headroom[study]'")
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from models.device import check_device_name, check_dtype_name
    from models.quality.labelled import iter_labelled

    check_device_name(device)
    check_dtype_name(dtype)
    config = read_config(locate(model))
    for file in (data, holdout):
        if config.is_graded and file is not None:
            next(iter_labelled(file, grades=len(config.labels)))


def _graded(model: str | None, device: str, dtype: str) -> Classifier:
    from models import Classifier, ModelError

    clf = Classifier.load(model, device, dtype)
    if not clf.grades:
        raise ModelError(f"{clf.name} gives one score and no grades; a study needs a graded classifier")
    return clf


def _effort(kind: Kind, quick: bool) -> Effort:
    from models.study.effort import FULL, QUICK, QUICK_ALL

    if not quick:
        return FULL
    return QUICK_ALL if kind is Kind.all else QUICK


def _read(
    data: Path, holdout: Path | None, clf: Classifier, effort: Effort, max_pairs: int, seed: int
) -> tuple[Judged, Judged | None]:
    """Read both files, check that they share no query, and cut them to the effort."""
    from models.study import inputs
    from models.study.effort import QUERY_TITLES

    files = (data,) if holdout is None else (data, holdout)
    judged, *held_out = (
        inputs.read_judged(file, grades=len(clf.grades), max_pairs=max_pairs, seed=seed) for file in files
    )
    for other in held_out:
        inputs.check_apart(judged, other)
    if effort.pairs is not None:
        judged = inputs.roughly(judged, effort.pairs, QUERY_TITLES, seed)
        held_out = [inputs.roughly(other, effort.pairs, QUERY_TITLES, seed) for other in held_out]
    return judged, held_out[0] if held_out else None


def _run(kind: Kind, study: Study, bar: Bar | None, as_json: bool) -> str:
    """Run the study, write its report and return the text to print. bar: tells how long it will take."""
    import json

    from models.study import duration, kinds, report

    if bar is not None:
        pace = duration.seconds_per_pass(study)
        plan = [(stage, work * pace) for stage, work in duration.stages(kind.value, study)]
        bar.expect(plan, duration.in_words(duration.total(plan)))
    result = kinds.run(kind.value, study)
    before = (kinds.beside_published(result),) if result.findings else ()
    content = report.write(study, result, (*before, *result.sections))
    if as_json:
        return json.dumps(content, ensure_ascii=False)
    return f"{result.conclusion}\n\n{study.out / 'report.html'}"


@contextlib.contextmanager
def _cluster(model: str | None, clf: Classifier, use_ray: bool) -> Iterator[Map | None]:
    """Yield what evaluates masks on a Ray cluster; None, without --ray, stands for this process."""
    if not use_ray:
        yield None
        return
    from models.checkpoint.hub import locate
    from service.deployment import tasks

    with tasks.spread(str(locate(model)), str(clf.network.device), str(clf.network.dtype)) as remote:
        yield remote


class Bar:
    """Shows progress and the time left on standard error: one moving line on a terminal, else a line every
    15 seconds."""

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._what = ""
        self._open = False
        self._plan: list[tuple[str, float]] = []

    def expect(self, plan: Sequence[tuple[str, float]], words: str) -> None:
        """Say how long the study will take. plan: the stages with their seconds; words: the sum."""
        self._plan = list(plan)
        print(
            f"This takes {words} here, by the speed of a first batch, or less if an earlier run left results "
            "in cache/.",
            file=sys.stderr,
            flush=True,
        )

    def start(self, what: str, total: int) -> None:
        """Begin the stage `what` of `total` steps."""
        self.close()
        names = [name for name, _ in self._plan]
        if what in names:
            self._plan = self._plan[names.index(what) + 1 :]
        self._what, self._total, self._done = what, max(total, 1), 0
        self._began = self._said = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count steps as done and, if it is time to, show the progress."""
        self._done += steps
        now = time.monotonic()
        if now - self._said < (0.2 if self._moving else 15) and self._done < self._total:
            return
        if not self._moving and now - self._began < 2:
            return
        self._said = now
        left = (now - self._began) * (self._total - self._done) / self._done
        width = 28 * self._done // self._total
        later = sum(seconds for _, seconds in self._plan)
        line = f"{self._what}: {self._done / self._total:4.0%}, {_clock(left)} left"
        if later:
            line += f"; in all about {_clock(left + later)}"
        if self._moving:
            print(f"\r\x1b[K[{'#' * width:<28}] {line}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the moving line."""
        if self._open:
            print(file=sys.stderr, flush=True)
        self._open = False


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
