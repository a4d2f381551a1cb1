"""Writes the report of a study: report.json, report.md, report.html, the plots, and head_study.json, with
which the service's page shades and labels the heads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from headroom.models.checkpoint.files import HEAD_STUDY, weights_id
from headroom.models.device import describe
from headroom.models.files import Json, write_whole
from headroom.models.quality.bootstrap import Interval, resample
from headroom.models.quality.evaluation import intervals_of
from headroom.models.quality.metrics import NAMES, Measures
from headroom.models.study import page, plots
from headroom.models.study.limits import limits
from headroom.models.study.page import REPORT, Figure, Finding, Result, Section, Table
from headroom.models.study.pairs import Judged
from headroom.models.study.roles.scores import ROLES
from headroom.models.study.study import FULL, ROUGH, Study

JSON = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
"""How values, dataclasses and arrays become report.json; what is not finite becomes null."""


def write(study: Study, result: Result) -> Json:
    """Write the report into study.out, in place of an earlier one, and return the content of report.json."""
    replaced = (study.out / REPORT).exists()
    whole = study.whole
    counts = resample(whole.clusters, study.effort.resamples, study.seed)
    baseline = intervals_of(whole.draws(counts, whole.of_sums), counts)
    text = orjson.dumps(_content(study, result, baseline), option=JSON).decode()
    content: Json = orjson.loads(text)
    rough = [] if study.effort == FULL else [ROUGH]
    values: Json = {
        "title": f"Head study “{result.kind}” of {study.classifier.name}",
        "verdict": result.verdict,
        "conclusion": " ".join([*rough, *content["limits"]]),
        "sections": (*_published(result.findings), *result.sections, _whole_model(study, content, baseline)),
        "picture": result.picture,
    }
    drawings = _draw(study, [result.picture, *(section.picture for section in result.sections)])
    files: dict[str, str | None] = {
        REPORT: text,
        "report.md": page.markdown(**values),
        "report.html": page.html(drawings, **values),
        HEAD_STUDY: head_study(content, weights_id(study.source), study.shape, study.measures),
        **{f"plots/{name}.svg": svg for name, svg in drawings.items()},
        **result.files,
    }
    for name, file in files.items():
        if file is not None:
            write_whole(study.out / name, file.encode())
        elif replaced:
            (study.out / name).unlink(missing_ok=True)
    return content


def _published(findings: tuple[Finding, ...]) -> list[Section]:
    rows = tuple((one.claim, one.published, one.ours) for one in findings)
    table = Table(("published claim", "published", "here, with 95 % interval"), rows)
    return [Section("Beside the published numbers", tables=(table,))] if rows else []


def _content(study: Study, result: Result, baseline: dict[str, Interval]) -> Json:
    """Return the content of report.json, with numbers that JSON cannot hold. baseline: of the whole model."""
    return {
        "schema": 1,
        "kind": result.kind,
        "model": study.classifier.name,
        "number_format": study.classifier.network.number_format,
        "device": describe(study.classifier.network.device),
        "baseline": {name: baseline[name].value for name in study.measures.names},
        "baseline_interval": {name: baseline[name].ends for name in study.measures.names},
        "random_order_ndcg10": study.whole.random_order_ndcg10(),
        "data": _source(study.data),
        "holdout": None if study.holdout is None else _source(study.holdout),
        "settings": {
            "seed": study.seed,
            "resamples": study.effort.resamples,
            "margin": study.margin,
            "quick": study.effort != FULL,
        },
        "verdict": result.verdict,
        "limits": limits(result.kind, study),
        "findings": result.findings,
        **result.json,
    }


def _draw(study: Study, pictures: list[Figure | None]) -> dict[str, str]:
    """Write the plots as PNG, and return each as SVG by its name."""
    directory = study.out / "plots"
    directory.mkdir(parents=True, exist_ok=True)
    figures = [one for one in pictures if one is not None]
    return {
        one.name: plots.svg(one.draw, directory / f"{one.name}.png") for one in study.stage("plots", figures)
    }


def _whole_model(study: Study, content: Json, baseline: dict[str, Interval]) -> Section:
    """Return what the figures are of, and the metrics of the whole model. content: of report.json."""
    read = "; held out: ".join(
        f"{data['pairs']:,} pairs of {data['queries']:,} queries from {data['source']}"
        + (f" ({data['note']})" if data["note"] else "")
        for data in (content["data"], content["holdout"])
        if data is not None
    )
    text = (
        f"{read}. Intervals are 95 %, by symmetric bootstrap-t over whole queries "
        f"({study.effort.resamples:,} resamples, seed {study.seed}); with fewer than 50 queries only large "
        f"effects can be told from chance. All figures are for {content['number_format']} on "
        f"{content['device']}; with another number format they differ a little, and the number of heads that "
        "just pass a test differs more."
    )
    rows = tuple((NAMES[metric], baseline[metric].text()) for metric in study.measures.names)
    order = content["random_order_ndcg10"]
    caption = "" if order is None else f"A random order of the titles has NDCG@10 {order:.3f}."
    return Section("The whole model", (text,), (Table(("metric", "value (95 %)"), rows, caption),))


def _source(data: Judged) -> Json:
    return {"source": data.source, "pairs": len(data), "queries": len(data.queries), "note": data.note}


def head_study(
    report: Mapping[str, Any], weights: str, shape: tuple[int, int], measures: Measures
) -> str | None:
    """Return head_study.json from the report.json of `single` or `all`; None if it has not every head.

    weights: names the checkpoint's weights (`weights_id`). shape: its layers and heads. measures: those of
    the model; `metrics` of the file names the ones that it keeps, the one that shades the heads first. Of a
    role the file keeps the heads that hold it.
    """
    if "part" in report or len(report.get("heads", ())) != shape[0] * shape[1]:
        return None
    metrics = tuple(dict.fromkeys((measures.main, *measures.tested, measures.share)))
    head = {
        "schema": 1,
        "weights": weights,
        "shape": shape,
        "data": report["data"]["source"],
        "pairs": report["data"]["pairs"],
        "queries": report["data"]["queries"],
        "number_format": report["number_format"],
        "metrics": {metric: NAMES[metric] for metric in metrics},
        "baseline": {metric: _short(report["baseline"][metric]) for metric in metrics},
    }
    roles = report.get("roles", {})
    heads = ",\n".join(f"  {json.dumps(_head(row, roles, metrics))}" for row in report["heads"])
    return f'{json.dumps(head)[:-1]}, "heads": [\n{heads}\n]}}\n'


def _head(row: Mapping[str, Any], roles: Mapping[str, list[Json]], metrics: Sequence[str]) -> Json:
    """Return what is known of one head; `delta` and `interval` are changes with that head alone off."""
    return {
        "layer": row["layer"],
        "head": row["head"],
        "delta": {metric: _short(row["delta"][metric]) for metric in metrics},
        "interval": {metric: [_short(end) for end in row["interval"][metric]] for metric in metrics},
        "p_adjusted": _short(row["p_adjusted"]),
        "roles": {
            role: _short(scored["excess"])
            for role in ROLES
            for scored in roles.get(role, [])
            if (scored["layer"], scored["head"]) == (row["layer"], row["head"]) and scored["holds"]
        },
    }


def _short(value: float | None) -> float | None:
    """Return a number with four digits after the point; None if it is undefined."""
    return None if value is None else round(value, 4)
