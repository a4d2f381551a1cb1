"""Writes the report of a study: report.json, report.md, report.html, the plots and other files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.device import describe
from models.quality import evaluation
from models.quality.bootstrap import Interval
from models.study import kinds, page, plots
from models.study.base import Judged
from models.study.earlier_report import FILES, PAGES, PLOTS, REPORT, remove_others
from models.study.effort import FULL, ROUGH
from models.study.result import Figure, Result, Section, Table
from models.study.study import Study
from models.study.wording import NAMES

DPI = 160


def write(study: Study, result: Result) -> dict[str, Any]:
    """Write the report into study.out and return the content of report.json.

    Files of an earlier report there that this one does not write are removed, such as its mask.
    """
    content = report_json(study, result)
    before = (kinds.beside_published(result.findings),) if result.findings else ()
    sections = (*before, *result.sections, _setting(study, content))
    figures = {figure.name: figure for section in sections for figure in section.figures}
    if result.picture is not None:
        figures[result.picture.name] = result.picture
    plot_files = [f"{PLOTS}/{name}.{ending}" for name in figures for ending in ("png", "svg")]
    content[FILES] = [*PAGES, *result.files, *plot_files]
    remove_others(study.out, content[FILES])
    (study.out / PLOTS).mkdir(parents=True, exist_ok=True)
    drawings = {name: _draw(study.out / PLOTS, figure) for name, figure in figures.items()}
    title = f"Head study “{result.kind}” of {study.classifier.name}"
    conclusion = result.conclusion if study.effort == FULL else f"{ROUGH} {result.conclusion}"
    texts = (title, result.verdict, conclusion, sections)
    _write(study.out / REPORT, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    _write(study.out / "report.md", page.markdown(*texts, result.picture))
    _write(study.out / "report.html", page.html(*texts, drawings, result.picture))
    for name, text in result.files.items():
        _write(study.out / name, text)
    return content


def report_json(study: Study, result: Result) -> dict[str, Any]:
    """Return the content of report.json; undefined numbers are null."""
    whole = study.runner.evaluate([study.classifier.all_heads.matrix], "baseline")[0]
    baseline = evaluation.intervals(whole, resamples=study.resamples, seed=study.seed)
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
            "verdict": result.verdict,
            "conclusion": result.conclusion,
            "findings": [
                {
                    "claim": finding.claim,
                    "published": finding.published,
                    "ours": finding.ours,
                    "replicates": finding.replicates,
                    "verdict": finding.verdict,
                    "reason": finding.reason,
                }
                for finding in result.findings
            ],
            **result.json,
        }
    )
    return plain


def _setting(study: Study, content: Mapping[str, Any]) -> Section:
    data, holdout = study.data, study.holdout
    read = f"{len(data):,} pairs of {len(data.queries):,} queries from {data.source}"
    read += f" ({data.note})" if data.note else ""
    if holdout is not None:
        read += f"; {len(holdout):,} pairs of {len(holdout.queries):,} other queries held out"
        read += f", from {holdout.source}" + (f" ({holdout.note})" if holdout.note else "")
    paragraphs = [
        f"{read}. Intervals are 95 %, by symmetric bootstrap-t over whole queries "
        f"({study.resamples:,} resamples, seed {study.seed}). All figures are of "
        f"{content['number_format']} on {content['device']}; with another number format they differ a "
        "little, and the number of heads that just pass a test differs more."
    ]
    if len(data.queries) < 50:
        paragraphs.append(
            f"With {len(data.queries)} queries only large effects can be told from chance: if an "
            "interval is wide, the data do not say whether there is an effect."
        )
    rows = tuple(
        (NAMES[name], f"{value:.3f}", _ends(content["baseline_interval"][name]))
        for name, value in content["baseline"].items()
        if value is not None
    )
    order = content["random_order_ndcg10"]
    caption = "" if order is None else f"A random order of the titles has NDCG@10 {order:.3f}."
    return Section("The whole model", tuple(paragraphs), (Table(("metric", "value", "95 %"), rows, caption),))


def _ends(interval: list[float | None]) -> str:
    low, high = interval
    return "no interval" if low is None or high is None else f"{low:.3f} to {high:.3f}"


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


def _defined(value: Any) -> Any:
    """Replace nan and infinity, which JSON does not have, by None, and intervals by their values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Interval):
        return {"value": _defined(value.value), "low": _defined(value.low), "high": _defined(value.high)}
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
