"""`headroom study`: which heads matter, asked of your own checkpoint and labelled pairs."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.interrupt import ends_at_once

if TYPE_CHECKING:
    from models.study.runner import Map

NEEDED = ("matplotlib",)
"""What the extra [study] installs."""


class Kind(StrEnum):
    """The questions; each answers one of docs/head-studies.md."""

    single = "single"
    random = "random"
    layers = "layers"
    roles = "roles"
    similarity = "similarity"
    search = "search"
    all = "all"


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def command(
    kind: Annotated[Kind, typer.Argument(help="What to ask; all: everything, in one report.")],
    data: Annotated[
        Path, typer.Option(help="Labelled pairs: csv, tsv, jsonl or parquet of query,title,grade.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for report.md, report.html, report.json and plots.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint directory or hub id.")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="Pairs of other queries, on which `search` proves its mask.")
    ] = None,
    peer: Annotated[
        str | None, typer.Option(help="The same model from another training seed, for `similarity`.")
    ] = None,
    margin: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="A loss of accuracy, QWK or NDCG@10 that is still none.")
    ] = 0.02,
    max_pairs: Annotated[
        int, typer.Option(min=100, help="From a larger file whole queries are drawn, to this many pairs.")
    ] = 20_000,
    resamples: Annotated[int, typer.Option(min=200, max=20_000, help="Bootstrap resamples.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn at random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A rough answer from few pairs and draws, in a minute or two a kind."),
    ] = False,
    use_ray: Annotated[
        bool,
        typer.Option("--ray", help="Spread the masks over a Ray cluster (RAY_ADDRESS), or one started here."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="report.json on standard output.")] = False,
) -> None:
    """Find out which attention heads matter; every effect with its 95 % interval.

    A study that was stopped (Ctrl-C) goes on where it was when the same command is given again.

    Example: headroom study single --data data/sample/calibration.jsonl.gz --out runs/single
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"headroom study needs {', '.join(missing)}; pip install 'headroom[study]'")
    import json

    from models import ModelError
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from models.device import check_device_name, check_dtype_name
    from models.quality.labelled import iter_labelled

    check_device_name(device)
    check_dtype_name(dtype)
    own = read_config(locate(model))
    for file in (data, holdout):  # a missing file or column is told before torch is imported
        if own.is_graded and file is not None:
            next(iter_labelled(file, grades=len(own.labels)))

    from models import Classifier
    from models.study import duration, inputs, kinds, report
    from models.study.base import Study
    from models.study.effort import FULL, QUERY_TITLES, QUICK, QUICK_ALL
    from models.study.runner import Runner, identity_of

    clf = Classifier.load(model, device, dtype)
    if not clf.grades:
        raise ModelError(f"{clf.name} gives one score and no grades; a study needs a graded classifier")
    judged = inputs.read_judged(data, grades=len(clf.grades), most_pairs=max_pairs, seed=seed)
    kept = None
    if holdout is not None:
        kept = inputs.read_judged(holdout, grades=len(clf.grades), most_pairs=max_pairs, seed=seed)
        inputs.check_apart(judged, kept)
    effort = FULL if not quick else QUICK_ALL if kind is Kind.all else QUICK
    if effort.pairs is not None:
        judged = inputs.roughly(judged, effort.pairs, QUERY_TITLES, seed)
        kept = None if kept is None else inputs.roughly(kept, effort.pairs, QUERY_TITLES, seed)
    bar = Bar()
    common: dict[str, Any] = {
        "cache": out / "cache",
        "identity": identity_of(locate(model), clf),
        "progress": bar,
    }
    with _cluster(model, clf, use_ray) as remote:
        study = Study(
            classifier=clf,
            data=judged,
            runner=Runner(clf, judged, remote=remote, **common),
            out=out,
            holdout=kept,
            holdout_runner=None if kept is None else Runner(clf, kept, remote=remote, **common),
            seed=seed,
            resamples=min(resamples, effort.resamples),
            margin=margin,
            model=model,
            peer=None if peer is None else Classifier.load(peer, device, dtype),
            progress=bar,
            effort=effort,
        )
        if not use_ray:  # a cluster's speed is not this machine's
            pace = duration.seconds_per_pass(study)
            plan = [(what, work * pace) for what, work in duration.stages(kind.value, study)]
            bar.expect(plan, duration.in_words(duration.total(plan)))
        result = kinds.run(kind.value, study)
        before = (kinds.beside_published(result),) if result.findings else ()
        content = report.write(study, result, (*before, *result.sections))
    bar.close()
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        print(f"{result.conclusion}\n\n{out / 'report.html'}")


@contextlib.contextmanager
def _cluster(model: str | None, clf: Any, use_ray: bool) -> Any:
    """Where masks are evaluated: None for this process."""
    if not use_ray:
        yield None
        return
    from models.checkpoint.hub import locate
    from service.deployment import tasks

    remote: Map
    with tasks.spread(str(locate(model)), str(clf.network.device), str(clf.network.dtype)) as remote:
        yield remote


class Bar:
    """Progress on standard error with the time left: one moving line on a terminal, else a line now and
    then."""

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._what = ""
        self._open = False
        self._plan: list[tuple[str, float]] = []

    def expect(self, plan: Sequence[tuple[str, float]], words: str) -> None:
        """Says how long it will take. plan: the stages to come with their seconds; words: their sum."""
        self._plan = list(plan)
        print(
            f"This takes {words} here, by the speed of a first batch, less what an earlier run has left "
            f"in cache/.",
            file=sys.stderr,
            flush=True,
        )

    def start(self, what: str, total: int) -> None:
        self.close()
        names = [name for name, _ in self._plan]
        if what in names:
            self._plan = self._plan[names.index(what) + 1 :]
        self._what, self._total, self._done = what, max(total, 1), 0
        self._began = self._said = time.monotonic()

    def advance(self, steps: int = 1) -> None:
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
        """Ends the moving line."""
        if self._open:
            print(file=sys.stderr, flush=True)
        self._open = False


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
