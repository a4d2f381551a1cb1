"""The kinds of study by name, and all of them as one."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from models.study import claims
from models.study.result import Result, Section, Table
from models.study.study import Study

KINDS = ("single", "random", "layers", "roles", "similarity", "words", "search")
"""The kinds of which `all` consists. Each kind is a package of this one with `run`; it is imported when it
runs, with the libraries that only it needs. So is `cost`; it measures the machine and is no part of `all`."""


def run(kind: str, study: Study) -> Result:
    """Run one kind, or `all`."""
    if kind == "all":
        return everything(study)
    result: Result = import_module(f"models.study.{kind}").run(study)
    return replace(result, findings=claims.scored(result.findings, study))


def everything(study: Study) -> Result:
    """Run every kind, one after the other, and merge the reports into one."""
    results = [run(kind, study) for kind in KINDS]
    merged: dict[str, object] = {"conclusions": {result.kind: result.conclusion for result in results}}
    files: dict[str, str] = {}
    sections: list[Section] = []
    for result in results:
        for key, value in result.json.items():
            if key in merged:
                raise AssertionError(f"two kinds of study report {key!r}")
            merged[key] = value
        files.update(result.files)
        first, *others = result.sections
        sections += [replace(first, paragraphs=(result.conclusion, *first.paragraphs)), *others]
    findings = tuple(finding for result in results for finding in result.findings)
    return Result("all", merged, claims.conclusion(findings), tuple(sections), findings, files)


def beside_published(result: Result) -> Section:
    """Return the table of our numbers beside the published ones."""
    rows = tuple(
        (finding.claim, finding.published, finding.ours, finding.verdict, finding.reason)
        for finding in result.findings
    )
    header = ("published claim", "published", "here, with 95 % interval", "verdict", "why")
    return Section("Our numbers beside the published ones", (), (Table(header, rows),))
