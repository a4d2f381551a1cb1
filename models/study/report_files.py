"""Writes the report of a study: report.json, report.md, report.html, the plots and other files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.device import describe
from models.quality import evaluation
from models.study import page, plots
from models.study.base import Judged
from models.study.earlier_report import FILES, PAGES, PLOTS, REPORT, remove_others
from models.study.effort import FULL, left_out
from models.study.result import Figure, Result, Section, Table
from models.study.study import Study
from models.study.wording import NAMES

DPI = 160


def write(study: Study, result: Result, sections: tuple[Section, ...]) -> dict[str, Any]:
    """Write the report into study.out and return the content of report.json.

    Files of an earlier report there that this one does not write are removed, such as its mask.
    sections: the sections of the result, and those that come before them.
    """
    content = report_json(study, result)
    sections = (_setting(study, content), *sections)
    if study.effort != FULL:
        sections = (Section("A rough answer", (left_out(result.kind, study.effort),)), *sections)
    figures = [figure for section in sections for figure in section.figures]
    plot_files = [f"{PLOTS}/{figure.name}.{ending}" for figure in figures for ending in ("png", "svg")]
    content[FILES] = [*PAGES, *result.files, *plot_files]
    remove_others(study.out, content[FILES])
    (study.out / PLOTS).mkdir(parents=True, exist_ok=True)
    drawings = {figure.name: _draw(study.out / PLOTS, figure) for figure in figures}
    title = f"Head study “{result.kind}” of {study.classifier.name}"
    _write(study.out / REPORT, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    _write(study.out / "report.md", markdown(title, result.conclusion, sections))
    _write(study.out / "report.html", page.html(title, result.conclusion, sections, drawings))
    for name, text in result.files.items():
        _write(study.out / name, text)
    return content


def report_json(study: Study, result: Result) -> dict[str, Any]:
    """Return the content of report.json; undefined numbers are null."""
    whole = study.runner.evaluate([study.classifier.all_heads.matrix], "baseline")[0]
    baseline = evaluation.within_range(
        evaluation.intervals(whole, resamples=study.resamples, seed=study.seed)
    )
    plain: dict[str, Any] = _defined(
        {
            "schema": 1,
            "kind": result.kind,
            "model": study.classifier.name,
            "number_format": study.classifier.network.number_format,
            "device": describe(study.classifier.network.device),
            "baseline": {name: baseline[name].value for name in NAMES},
            "baseline_interval": {name: [baseline[name].low, baseline[name].high] for name in NAMES},
            "random_order_ndcg10": whole.random_order_ndcg10(),
            "data": _source(study.data),
            "holdout": None if study.holdout is None else _source(study.holdout),
            "settings": {
                "seed": study.seed,
                "resamples": study.resamples,
                "margin": study.margin,
                "quick": study.effort != FULL,
            },
            "conclusion": result.conclusion,
            "findings": [
                {
                    "claim": finding.claim,
                    "published": finding.published,
                    "ours": finding.ours,
                    "replicates": finding.replicates,
                    "fact": finding.fact,
                    "verdict": finding.verdict,
                    "reason": finding.reason,
                }
                for finding in result.findings
            ],
            **result.json,
        }
    )
    return plain


def markdown(title: str, conclusion: str, sections: tuple[Section, ...]) -> str:
    """Return the report as Markdown, with links to its plots."""
    lines = [f"# {title}", "", _escaped(conclusion), ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [_escaped(paragraph), ""]
        for table in section.tables:
            lines += [*_markdown_table(table), ""]
        for figure in section.figures:
            lines += [
                f"![{figure.alt or figure.caption}]({PLOTS}/{figure.name}.png)",
                "",
                f"*{figure.caption}*",
                "",
            ]
    return "\n".join(lines)


def _setting(study: Study, content: Mapping[str, Any]) -> Section:
    data = study.data
    paragraphs = [
        f"{len(data):,} pairs of {len(data.queries):,} queries from {data.source}"
        + (f" ({data.note})" if data.note else "")
        + (
            "."
            if study.holdout is None
            else f"; {len(study.holdout):,} pairs of {len(study.holdout.queries):,} other "
            f"queries from {study.holdout.source} held out"
            + (f" ({study.holdout.note})." if study.holdout.note else ".")
        )
        + f" Intervals are 95 %, by symmetric bootstrap-t over whole queries ({study.resamples:,} "
        f"resamples, seed {study.seed}). All figures are of {content['number_format']} on "
        f"{content['device']}; with another number format they differ a little, and the number of heads that "
        "just pass a test differs more.",
    ]
    if len(data.queries) < 50:
        paragraphs.append(
            f"With {len(data.queries)} queries only large effects can be told from chance: if an "
            "interval is wide, the data do not say whether there is an effect."
        )
    rows = tuple(
        (
            NAMES[name],
            f"{content['baseline'][name]:.3f}",
            "no interval"
            if None in content["baseline_interval"][name]
            else "{:.3f} to {:.3f}".format(*content["baseline_interval"][name]),
        )
        for name in NAMES
        if content["baseline"][name] is not None
    )
    order = content["random_order_ndcg10"]
    caption = "" if order is None else f"A random order of the titles has NDCG@10 {order:.3f}."
    return Section("The whole model", tuple(paragraphs), (Table(("metric", "value", "95 %"), rows, caption),))


def _source(data: Judged) -> dict[str, Any]:
    return {"source": data.source, "pairs": len(data), "queries": len(data.queries), "note": data.note}


def _draw(directory: Path, figure: Figure) -> str:
    """Write the figure as PNG and SVG and return the SVG."""
    from matplotlib import rc_context

    with rc_context(rc=plots.STYLE):  # type: ignore[arg-type]  # the stubs list every key
        drawing = figure.draw()
        drawing.savefig(directory / f"{figure.name}.png", dpi=DPI)
    svg = plots.svg(drawing)
    _write(directory / f"{figure.name}.svg", svg)
    return svg


def _markdown_table(table: Table) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(_escaped(cell).replace("|", "\\|") for cell in cells) + " |"

    rows = [line(table.header), "|" + " --- |" * len(table.header), *(line(row) for row in table.rows)]
    return ([_escaped(table.caption), ""] if table.caption else []) + rows


def _escaped(text: str) -> str:
    """Escape the signs of Markdown, which file names and queries may hold."""
    for sign in ("\\", "`", "*", "_", "<", "["):
        text = text.replace(sign, "\\" + sign)
    return text


def _defined(value: Any) -> Any:
    """Replace nan and infinity, which JSON does not have, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _defined(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    return value


def _write(file: Path, text: str) -> None:
    """Write the file atomically, so that it is never there in part."""
    draft = file.with_name(file.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
