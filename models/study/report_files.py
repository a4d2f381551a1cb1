"""Writes the report of a study: report.json, report.md, report.html, the plots and other files."""

from typing import Any

import orjson

from models.checkpoint.extras import FILE, weights_id
from models.checkpoint.hub import locate
from models.device import describe
from models.files import write_whole
from models.quality import evaluation
from models.quality.bootstrap import Interval
from models.study import page, plots
from models.study.base import Judged
from models.study.head_study import head_study
from models.study.page import REPORT
from models.study.result import Result, Section, Table
from models.study.study import FULL, ROUGH, Study
from models.study.wording import NAMES

JSON = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
"""How values, dataclasses and arrays become report.json; what is not finite becomes null."""


def write(study: Study, result: Result) -> dict[str, Any]:
    """Write the report into study.out, in place of an earlier one, and return the content of report.json."""
    replaced = (study.out / REPORT).exists()
    content = report_json(study, result)
    rows = tuple((one.claim, one.published, one.ours) for one in result.findings)
    table = Table(("published claim", "published", "here, with 95 % interval"), rows)
    published = [Section("Beside the published numbers", tables=(table,))] if rows else []
    sections = (*published, *result.sections, _setting(study, content))
    pictures = (result.picture, *(section.picture for section in sections))
    folder = study.out / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {one.name: plots.svg(one.draw, folder / f"{one.name}.png") for one in pictures if one}
    for name, svg in drawings.items():
        write_whole(folder / f"{name}.svg", svg.encode())
    values: dict[str, Any] = {
        "title": f"Head study “{result.kind}” of {study.classifier.name}",
        "verdict": result.verdict,
        "conclusion": result.conclusion if study.effort == FULL else f"{ROUGH} {result.conclusion}".strip(),
        "sections": sections,
        "picture": result.picture,
    }
    write_whole(study.out / REPORT, orjson.dumps(content, option=JSON))
    write_whole(study.out / "report.md", page.markdown(**values).encode())
    write_whole(study.out / "report.html", page.html(drawings, **values).encode())
    heads = head_study(content, weights_id(locate(study.model)), study.shape)
    for name, text in {FILE: heads, **result.files}.items():
        if text is not None:
            write_whole(study.out / name, text.encode())
        elif replaced:
            (study.out / name).unlink(missing_ok=True)
    return content


def report_json(study: Study, result: Result) -> dict[str, Any]:
    """Return the content of report.json; undefined numbers are null."""
    whole = study.runner.evaluate([study.classifier.all_heads.matrix], "baseline")[0]
    baseline = evaluation.intervals(whole, resamples=study.effort.resamples, seed=study.seed)
    content = {
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
            "resamples": study.effort.resamples,
            "margin": study.margin,
            "quick": study.effort != FULL,
        },
        "verdict": result.verdict,
        "conclusion": result.conclusion,
        "findings": result.findings,
        **result.json,
    }
    plain: dict[str, Any] = orjson.loads(orjson.dumps(content, option=JSON))
    return plain


def _setting(study: Study, content: dict[str, Any]) -> Section:
    data, holdout = study.data, study.holdout
    read = f"{len(data):,} pairs of {len(data.queries):,} queries from {data.source}"
    read += f" ({data.note})" if data.note else ""
    if holdout is not None:
        read += f"; {len(holdout):,} pairs of {len(holdout.queries):,} other queries held out"
        read += f", from {holdout.source}" + (f" ({holdout.note})" if holdout.note else "")
    paragraphs = [
        f"{read}. Intervals are 95 %, by symmetric bootstrap-t over whole queries "
        f"({study.effort.resamples:,} resamples, seed {study.seed}). All figures are for "
        f"{content['number_format']} on {content['device']}; with another number format they differ a "
        "little, and the number of heads that just pass a test differs more."
    ]
    if len(data.queries) < 50:
        paragraphs.append(
            f"With {len(data.queries)} queries only large effects can be told from chance: if an "
            "interval is wide, the data do not say whether there is an effect."
        )
    nan = float("nan")
    rows = []
    for name, value in content["baseline"].items():
        low, high = (nan if end is None else end for end in content["baseline_interval"][name])
        rows.append((NAMES[name], Interval(nan if value is None else value, low, high).text()))
    order = content["random_order_ndcg10"]
    caption = "" if order is None else f"A random order of the titles has NDCG@10 {order:.3f}."
    table = Table(("metric", "value (95 %)"), tuple(rows), caption)
    return Section("The whole model", tuple(paragraphs), (table,))


def _source(data: Judged) -> dict[str, Any]:
    return {"source": data.source, "pairs": len(data), "queries": len(data.queries), "note": data.note}
