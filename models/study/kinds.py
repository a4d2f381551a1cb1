"""The kinds of study by name, and all of them as one."""

from importlib import import_module

from models.study.result import Result, Section, Table
from models.study.study import Study

KINDS = ("single", "random", "layers", "roles", "similarity", "search")
"""Each kind is a module or a package of this one, whose `run(study)` measures and makes the report. It is
imported when it runs, with the libraries that it needs."""


def run(kind: str, study: Study) -> Result:
    """Run one kind, or `all`."""
    if kind == "all":
        return everything(study)
    result: Result = import_module(f"models.study.{kind}").run(study)
    return result


def everything(study: Study) -> Result:
    """Run every kind, one after the other, and merge the reports into one."""
    for kind in KINDS:  # import all of them first: files may change while a study runs for hours
        import_module(f"models.study.{kind}")
    results = [run(kind, study) for kind in KINDS]
    merged: dict[str, object] = {"verdicts": {result.kind: result.verdict for result in results}}
    files: dict[str, str | None] = {}
    rows = tuple((result.kind, result.verdict) for result in results)
    sections = [Section("Answers", tables=(Table(("question", "answer"), rows, "In one sentence."),))]
    for result in results:
        merged |= result.json
        files |= result.files
        method = (result.conclusion,) if result.conclusion else ()
        title = f"{result.kind}: {result.verdict}"
        sections += [Section(title, method, picture=result.picture), *result.sections]
    findings = tuple(finding for result in results for finding in result.findings)
    conclusion = "Each study has a sentence in the table of answers, and a picture and tables further down."
    search = results[-1]  # which heads can go is what most people ask
    return Result("all", merged, search.verdict, tuple(sections), search.picture, findings, conclusion, files)
