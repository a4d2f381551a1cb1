"""The kinds of study by name, and all of them as one."""

from importlib import import_module
from typing import get_args

from headroom.models.study import Kind
from headroom.models.study.page import Result, Section, Table
from headroom.models.study.study import Study

KINDS = get_args(Kind)[:-1]  # without `all`

MODULES = {"roles": "roles.report", "initialisation": "initialisation.report", "search": "search.report"}
"""The modules of the kinds that are packages. A kind's module has `run(study)`, which measures and makes the
report; it is imported when it runs, with the libraries that it needs."""


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
