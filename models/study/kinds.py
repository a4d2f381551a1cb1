"""The kinds of study by name, and all of them as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from models.study.result import Finding, Result, Section, Table
from models.study.study import Study
from models.study.wording import listed

KINDS = ("single", "random", "layers", "roles", "similarity", "search")
"""Each kind is a package of this one: `compute.measure(study)` measures, and `report.result(study, measured)`
makes the report. It is imported when it runs, with the libraries that it needs."""


def run(kind: str, study: Study) -> Result:
    """Run one kind, or `all`."""
    if kind == "all":
        return everything(study)
    compute, report = _modules(kind)
    result: Result = report.result(study, compute.measure(study))
    return result


def everything(study: Study) -> Result:
    """Run every kind, one after the other, and merge the reports into one."""
    for kind in KINDS:  # import all of them first: files may change while a study runs for hours
        _modules(kind)
    results = [run(kind, study) for kind in KINDS]
    merged: dict[str, object] = {"conclusions": {result.kind: result.conclusion for result in results}}
    files: dict[str, str] = {}
    for result in results:
        if both := merged.keys() & result.json.keys():
            raise AssertionError(f"two kinds of study report {both}")
        merged |= result.json
        files |= result.files
    findings = tuple(finding for result in results for finding in result.findings)
    answers = Table(
        ("question", "answer"), tuple((result.kind, result.verdict) for result in results), "In one sentence."
    )
    sections = [Section("Answers", tables=(answers,))]
    for result in results:
        pictures = () if result.picture is None else (result.picture,)
        heading = Section(f"{result.kind}: {result.verdict}", (result.conclusion,), figures=pictures)
        sections += [heading, *result.sections]
    conclusion = "Each study has a sentence in the table of answers, and a picture and tables further down."
    return Result(
        "all", merged, verdict(findings), conclusion, tuple(sections), findings, results[0].picture, files
    )


def verdict(findings: Sequence[Finding]) -> str:
    """Say how many of the published claims were found here."""
    counts = Counter(finding.verdict for finding in findings)
    parts = [f"{counts[word]} {word}" for word in ("found", "not found", "open") if counts[word]]
    return f"Of {len(findings)} published claims: {listed(parts)}."


def _modules(kind: str) -> list[ModuleType]:
    return [import_module(f"models.study.{kind}.{part}") for part in ("compute", "report")]
