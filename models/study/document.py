"""Writes docs/head-studies.md from a finished `headroom study all`, so that no number in it is typed by hand.

    python -m models.study.document runs/study docs/head-studies.md

What the studies ask and how is in head-studies-method.md beside it, which a person writes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ModelError

SHOWN = ("single-heads", "random-heads", "layers-off", "layers-noticed")
"""The plots of this package's own kinds; every other plot of the run is shown too, after them."""


def write(run: Path, target: Path) -> None:
    """Writes `target`, and the plots into a directory of its name. Raises ModelError for another kind."""
    file = run / "report.json"
    if not file.is_file():
        raise ModelError(f"{run} holds no report.json; run headroom study all --out {run} first")
    report = json.loads(file.read_text(encoding="utf-8"))
    if report["kind"] != "all":
        raise ModelError(f"{file} is of the study {report['kind']!r}; the document needs 'all'")
    plots = target.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    names = sorted((p.stem for p in (run / "plots").glob("*.png")), key=lambda name: (_place(name), name))
    for name in names:
        shutil.copyfile(run / "plots" / f"{name}.png", plots / f"{name}.png")
    target.write_text(_text(report, names, plots.name), encoding="utf-8")


def _place(name: str) -> int:
    return SHOWN.index(name) if name in SHOWN else len(SHOWN)


def _text(report: Mapping[str, Any], plots: list[str], directory: str) -> str:
    words = {True: "yes", False: "**no**", None: "cannot tell"}
    data, baseline = report["data"], report["baseline"]
    held = report["holdout"]
    lines = [
        f"# Head studies of {report['model']}",
        "",
        "Written by `python -m models.study.document` from one run of",
        "",
        "```console",
        f"$ headroom study all --data {data['source']}"
        + (f" --holdout {held['source']}" if held else "")
        + " --out runs/study",
        "```",
        "",
        f"{data['pairs']:,} pairs of {data['queries']} queries"
        + (f", {held['pairs']:,} of {held['queries']} other queries held out" if held else "")
        + f". The whole model: accuracy {baseline['accuracy']:.3f}, QWK {baseline['qwk']:.3f}, NDCG@10 "
        f"{baseline['ndcg10']:.3f} (a random order: {report['random_order_ndcg10']:.3f}). Method: "
        "[head-studies-method.md](head-studies-method.md).",
        "",
        "## Beside the published findings",
        "",
        report["conclusion"],
        "",
        "| published claim | published | here, with 95 % interval | replicates | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        "| " + " | ".join([f["claim"], f["published"], f["ours"], words[f["replicates"]], f["reason"]]) + " |"
        for f in report["findings"]
    ]
    lines += ["", "## What each study found", ""]
    for kind, conclusion in report["conclusions"].items():
        lines += [f"**{kind}.** {conclusion}", ""]
    lines += ["## Plots", ""]
    for name in plots:
        lines += [f"![{name.replace('-', ' ')}]({directory}/{name}.png)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="docs/head-studies.md from a finished study")
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    write(arguments.run, arguments.target)
