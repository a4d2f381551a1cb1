"""Runs a study: a kind by its name, or all of them as one."""

from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any, get_args

from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.study import Kind
from headroom.models.study.limits import limits
from headroom.models.study.page import Result, Section, Table
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner, identity_of
from headroom.models.study.study import Study, shortened
from headroom.models.terminal import ProgressBar, warn

KINDS = get_args(Kind)[:-1]  # without `all`

MODULES = {"roles": "roles.report", "initialisation": "initialisation.report", "search": "search.report"}
"""The modules of the kinds that are packages. A kind's module has `run(study)`, which measures and makes the
report; it is imported when it runs, with the libraries that it needs."""


def ask(
    kind: Kind,
    clf: Classifier,
    judged: Judged,
    holdout: Judged | None = None,
    *,
    progress: ProgressBar,
    out: Path | None,
    quick: bool,
    seed: int,
    **more: Any,
) -> tuple[Study, Result]:
    """Run a study on pairs that were read and checked, and say on standard error what it cannot show.

    out: keeps what is computed; None: nothing is kept. more: further fields of `Study`.
    """
    if clf.directory is None:
        raise ModelError("a study needs a classifier that was loaded from a directory or the hub")
    study = Study(
        classifier=clf,
        data=judged,
        runner=Runner(clf, None if out is None else out / "cache", identity_of(clf.directory, clf), progress),
        out=Path(gettempdir()) if out is None else out,
        holdout=holdout,
        seed=seed,
        **more,
    )
    if quick:
        study = shortened(kind, study)
    for sentence in limits(kind, study):
        warn(sentence)
    return study, run(kind, study)


def run(kind: str, study: Study) -> Result:
    """Run one kind; or `all`, one after the other, and merge the reports into one."""
    chosen = (kind,)
    if kind == "all":
        chosen = tuple(name for name in KINDS if name not in study.left_out)
    # Import all of them first: files may change while a study runs for hours.
    modules = [import_module(f"headroom.models.study.{MODULES.get(name, name)}") for name in chosen]
    results: list[Result] = [module.run(study) for module in modules]
    if kind != "all":
        return results[0]
    merged: dict[str, object] = {"verdicts": {result.kind: result.verdict for result in results}}
    files: dict[str, str | None] = {}
    rows = tuple((result.kind, result.verdict) for result in results)
    sections = [Section("Answers", tables=(Table(("question", "answer"), rows, "In one sentence."),))]
    for result in results:
        merged |= result.json
        files |= result.files
        title = f"{result.kind}: {result.verdict}"
        sections += [Section(title, picture=result.picture), *result.sections]
    findings = tuple(finding for result in results for finding in result.findings)
    search = results[-1]  # which heads can go is what most people ask
    return Result("all", merged, search.verdict, tuple(sections), search.picture, findings, files)
