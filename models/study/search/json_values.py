"""The JSON of `search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.head_mask import HeadMask
from models.study.search import rivals_report
from models.study.search.compute import Candidate, Search
from models.study.search.noninferiority import TESTED_METRICS, Verdict
from models.study.statistics import Resamples
from models.study.study import Study
from models.study.wording import NAMES


def as_json(search: Search, study: Study) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    return {
        "path": _path_json(search.plain, search.plain_verdicts, study),
        "tuned_path": _path_json(search.tuned, search.tuned_verdicts, study),
        "other_orders": [_point_json(candidate) for candidate in search.baselines],
        "chosen": _chosen_json(search.plain, search.plain_verdicts, search.chosen, "mask.json"),
        "chosen_tuned": _chosen_json(search.tuned, search.tuned_verdicts, search.chosen_tuned, "scales.json"),
        "rivals": None if search.rivalry is None else rivals_report.as_json(search.rivalry),
        "non_inferiority": {
            "margin": study.margin,
            "metrics": list(TESTED_METRICS),
            "alpha": 0.025,
            "test": "one-sided cluster bootstrap over held-out queries, both metrics, fixed sequence",
            "queries": 0 if study.holdout is None else len(study.holdout.queries),
        },
        "speed": [
            {
                "name": way.name,
                "pairs_per_second": way.pairs_per_second,
                "speedup": way.speedup,
                "parameters": way.parameters,
                "held_out": None if way.quality is None else _metrics(way.quality.metrics()),
            }
            for way in (search.speed.ways if search.speed else ())
        ],
    }


def _path_json(path: Sequence[Candidate], verdicts: Sequence[Verdict], study: Study) -> list[dict[str, Any]]:
    points = []
    resamples = Resamples(study.data, study.resamples, study.seed)
    for place, candidate in enumerate(path):
        point = _point_json(candidate)
        point["interval"] = {}
        for name, draws in resamples.draws(candidate.quality).items():
            interval = resamples.estimate(draws).interval()
            point["interval"][name] = [interval.low, interval.high]
        if verdicts:
            point["holdout"] = _verdict_json(verdicts[place], candidate)
        points.append(point)
    return points


def _point_json(candidate: Candidate) -> dict[str, Any]:
    mask = HeadMask.from_matrix((candidate.weights > 0).astype(np.float32))
    return {
        "method": candidate.method,
        "heads_on": candidate.heads_on,
        "spec": mask.spec,
        **_metrics(candidate.quality.metrics()),
    }


def _verdict_json(verdict: Verdict, candidate: Candidate) -> dict[str, Any]:
    assert candidate.held_out is not None
    return {
        **_metrics(candidate.held_out.metrics()),
        "tested": verdict.tested,
        "passed": verdict.passed,
        "loss": {
            name: {
                "delta": loss.delta,
                "bound": loss.bound,
                "standard_error": loss.error,
                "power": loss.power,
                "queries_needed": loss.queries_needed,
            }
            for name, loss in verdict.losses.items()
        },
    }


def _chosen_json(
    path: Sequence[Candidate], verdicts: Sequence[Verdict], place: int | None, file: str
) -> dict[str, Any] | None:
    if place is None:
        return None
    return {**_point_json(path[place]), "file": file, "holdout": _verdict_json(verdicts[place], path[place])}


def _metrics(values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in NAMES}
