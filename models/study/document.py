"""Puts a finished `headroom study all` into docs/head-studies.md, so that nobody types its numbers by hand.

    python -m models.study.document runs/study docs/head-studies.md

It replaces the text between the two marks; people write the rest of the page. head-studies-method.md beside
it explains how the studies work.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ModelError

BEGIN, END = "<!-- study: begin -->", "<!-- study: end -->"

SHOWN = ("single-heads", "random-heads", "layers-off", "layers-noticed")
"""The plots that come first; every other plot of the run follows."""


def write(run: Path, page: Path) -> None:
    """Write the run's findings between the marks of `page`, and its plots into a directory of that name.

    Raises ModelError if the run is of another kind, or the page has no marks.
    """
    file = run / "report.json"
    if not file.is_file():
        raise ModelError(f"{run} holds no report.json; run headroom study all --out {run} first")
    report = json.loads(file.read_text(encoding="utf-8"))
    if report["kind"] != "all":
        raise ModelError(f"{file} holds the study {report['kind']!r}; the document needs 'all'")
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if BEGIN not in text or END not in text:
        raise ModelError(f"{page} needs a line {BEGIN} and, after it, a line {END}")
    plots = page.with_suffix("")
    shutil.rmtree(plots, ignore_errors=True)
    plots.mkdir(parents=True)
    names = sorted((p.stem for p in (run / "plots").glob("*.png")), key=lambda name: (_place(name), name))
    for name in names:
        shutil.copyfile(run / "plots" / f"{name}.png", plots / f"{name}.png")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    findings = _text(report, names, plots.name)
    page.write_text(f"{before}{BEGIN}\n{findings}\n{END}{after}", encoding="utf-8")


def _place(name: str) -> int:
    return SHOWN.index(name) if name in SHOWN else len(SHOWN)


def _text(report: Mapping[str, Any], plots: list[str], directory: str) -> str:
    data, baseline = report["data"], report["baseline"]
    held = report["holdout"]
    lines = [
        "```console",
        f"$ headroom study all --data {data['source']}"
        + (f" --holdout {held['source']}" if held else "")
        + " --out runs/study",
        "```",
        "",
        f"{data['pairs']:,} pairs of {data['queries']} queries"
        + (f", {held['pairs']:,} of {held['queries']} other queries held out" if held else "")
        + f". The whole model: accuracy {baseline['accuracy']:.3f}, QWK {baseline['qwk']:.3f}, NDCG@10 "
        f"{baseline['ndcg10']:.3f} (a random order: {report['random_order_ndcg10']:.3f}). All figures are of "
        f"{report['number_format']} on {report['device']}.",
        "",
        "## Beside the published findings",
        "",
        report["conclusion"],
        "",
        "| published claim | published | here, with 95 % interval | verdict | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        "| " + " | ".join([f["claim"], f["published"], f["ours"], f["verdict"], f["reason"]]) + " |"
        for f in report["findings"]
    ]
    lines += ["", "## What each study found", ""]
    for kind, conclusion in report["conclusions"].items():
        lines += [f"**{kind}.** {conclusion}", ""]
    lines += ["## Plots", ""]
    for name in plots:
        lines += [f"![{name.replace('-', ' ').replace('_', ' ')}]({directory}/{name}.png)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Puts a finished study into docs/head-studies.md")
    parser.add_argument("run", type=Path)
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    write(arguments.run, arguments.page)
