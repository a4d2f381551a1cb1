"""The kinds of study by name, and all of them as one."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from models.study.base import Result, Section, Study, Table
from models.study.wording import listed

KINDS = {
    "single": "single",
    "random": "random_heads",
    "layers": "layers",
    "roles": "roles",
    "similarity": "similarity",
    "search": "search",
}
"""The module of each kind; it is imported when it runs, with the libraries that only it needs."""


def run(kind: str, study: Study) -> Result:
    """One kind, or `all`."""
    if kind == "all":
        return everything(study)
    result: Result = import_module(f"models.study.{KINDS[kind]}").run(study)
    return result


def everything(study: Study) -> Result:
    """Every kind, one after the other, as one result."""
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
    found, missed, open_ = (
        [finding.claim for finding in findings if finding.replicates is told] for told in (True, False, None)
    )
    conclusion = (
        f"Of {len(findings)} published claims, {len(found)} are found again in this model on these data, "
        f"{len(missed)} are not, and {len(open_)} cannot be told."
        + (f" Found again: {listed(found)}." if found else "")
        + (f" Not found: {listed(missed)}." if missed else "")
        + (f" Open: {listed(open_)}." if open_ else "")
    )
    return Result("all", merged, conclusion, tuple(sections), findings, files)


def beside_published(result: Result) -> Section:
    """The table of our numbers beside the published ones."""
    words = {True: "yes", False: "no", None: "cannot tell"}
    rows = tuple(
        (finding.claim, finding.published, finding.ours, words[finding.replicates], finding.reason)
        for finding in result.findings
    )
    header = ("published claim", "published", "here, with 95 % interval", "replicates", "why")
    return Section("Our numbers beside the published ones", (), (Table(header, rows),))
