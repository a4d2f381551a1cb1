"""The JSON of a search by time."""

from __future__ import annotations

from typing import Any

from models.study.search import json_values
from models.study.search.noninferiority import Verdict
from models.study.search.structured.compute import Found, Point
from models.study.search.structured.recovery import Recovered
from models.study.search.structured.speed import Pace
from models.study.statistics import Resamples
from models.study.study import Study


def as_json(found: Found, study: Study) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    return {
        "what": list(found.what),
        "wanted_speedup": found.wanted,
        "path": _path(found, found.path, found.verdicts, study),
        "tuned_path": _path(found, found.tuned, found.tuned_verdicts, study),
        "other_orders": [_point(found, point) for point in found.baselines],
        "chosen": _chosen(found, found.path, found.verdicts, found.chosen, "mask.json"),
        "chosen_tuned": _chosen(found, found.tuned, found.tuned_verdicts, found.chosen_tuned, "scales.json"),
        "layer_order": [{"layer": layer, "divergence": value} for layer, value in found.layer_order],
        "recovered": None if found.recovered is None else _recovered(found.recovered),
        "from_scratch": None if found.from_scratch is None else _recovered(found.from_scratch),
        "non_inferiority": json_values.non_inferiority(study),
        "intact_pairs_per_second": None if found.intact_pace is None else found.intact_pace.pairs_per_second,
        "search_seconds": found.seconds,
        "cost": found.table.to_json(),
    }


def _path(found: Found, path: list[Point], verdicts: list[Verdict], study: Study) -> list[dict[str, Any]]:
    points, resamples = [], Resamples(study.data, study.resamples, study.seed)
    for place, point in enumerate(path):
        content = {**_point(found, point), "interval": json_values.intervals(resamples, point.quality)}
        if verdicts:
            content["holdout"] = _verdict(verdicts[place], point)
        points.append(content)
    return points


def _point(found: Found, point: Point) -> dict[str, Any]:
    config = found.planner.config
    mask = point.structure.mask(config)
    heads, units = point.structure.kept_heads(config), point.structure.kept_units(config)
    return {
        "method": point.method,
        "speedup_wanted": point.speedup,
        "speedup_predicted": point.predicted,
        "speed": None if point.pace is None else _pace(point.pace),
        "divergence": point.divergence,
        "heads_on": sum(map(len, heads)),
        "units_on": sum(map(len, units)),
        "layers_on": len(point.structure.layers),
        "layers": [
            {"layer": layer, "heads": len(heads[layer]), "units": len(units[layer])}
            for layer in point.structure.layers
        ],
        "spec": mask.spec,
        **json_values.metrics(point.quality),
    }


def _pace(pace: Pace) -> dict[str, Any]:
    return {
        "pairs_per_second": pace.pairs_per_second,
        "speedup": pace.speedup,
        "interval": [pace.low, pace.high],
        "coverage": pace.coverage,
        "parameters": pace.parameters,
    }


def _verdict(verdict: Verdict, point: Point) -> dict[str, Any]:
    assert point.held_out is not None
    return json_values.held_out(point.held_out, verdict)


def _chosen(
    found: Found, path: list[Point], verdicts: list[Verdict], place: int | None, file: str
) -> dict[str, Any] | None:
    if place is None:
        return None
    holdout = {"holdout": _verdict(verdicts[place], path[place])} if verdicts else {}
    return {**_point(found, path[place]), "file": file, **holdout}


def _recovered(recovered: Recovered) -> dict[str, Any]:
    return {
        "directory": recovered.directory.name,
        "steps": recovered.steps,
        "minutes": recovered.minutes,
        "loss_first_tenth": recovered.before,
        "loss_last_tenth": recovered.after,
        **json_values.metrics(recovered.quality),
        "holdout": None
        if recovered.held_out is None
        else {
            **json_values.metrics(recovered.held_out),
            "passed": recovered.verdict is not None and recovered.verdict.passed,
            "loss": {} if recovered.verdict is None else json_values.losses(recovered.verdict),
        },
    }
