"""Writes the report of a study: report.json, report.md, report.html, the plots and other files."""

import orjson

from headroom.models.checkpoint.files import HEAD_STUDY, weights_id
from headroom.models.checkpoint.hub import locate
from headroom.models.device import describe
from headroom.models.files import Json, write_whole
from headroom.models.quality.bootstrap import Interval, resample
from headroom.models.quality.evaluation import Evaluation, intervals_of
from headroom.models.quality.metrics import NAMES
from headroom.models.study import page, plots
from headroom.models.study.head_study import head_study
from headroom.models.study.limits import limits
from headroom.models.study.page import REPORT
from headroom.models.study.pairs import Judged
from headroom.models.study.result import Figure, Finding, Result, Section, Table
from headroom.models.study.study import FULL, ROUGH, Study

JSON = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
"""How values, dataclasses and arrays become report.json; what is not finite becomes null."""


def write(study: Study, result: Result) -> Json:
    """Write the report into study.out, in place of an earlier one, and return the content of report.json."""
    replaced = (study.out / REPORT).exists()
    (whole,) = study.runner.evaluate(study.data, [study.without(())], "baseline")
    counts = resample(whole.clusters, study.effort.resamples, study.seed)
    baseline = intervals_of(whole.draws(counts, whole.of_sums), counts)
    text = orjson.dumps(_content(study, result, whole, baseline), option=JSON).decode()
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
        HEAD_STUDY: head_study(content, weights_id(locate(study.model)), study.shape, study.measures),
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


def _content(study: Study, result: Result, whole: Evaluation, baseline: dict[str, Interval]) -> Json:
    """Return the content of report.json, with numbers that JSON cannot hold. whole: of the whole model."""
    return {
        "schema": 1,
        "kind": result.kind,
        "model": study.classifier.name,
        "number_format": study.classifier.network.number_format,
        "device": describe(study.classifier.network.device),
        "baseline": {name: baseline[name].value for name in study.measures.names},
        "baseline_interval": {name: baseline[name].ends for name in study.measures.names},
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
