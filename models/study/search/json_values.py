"""The JSON of `search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.quality.evaluation import Evaluation, within_range
from models.study.search import rivals_report
from models.study.search.compute import Candidate, Search
from models.study.search.noninferiority import TESTED_METRICS, Verdict
from models.study.statistics import Resamples
from models.study.study import Study
from models.study.wording import NAMES


def as_json(search: Search, study: Study) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    return {
        "path": _path(search.plain, search.plain_verdicts, study),
        "tuned_path": _path(search.tuned, search.tuned_verdicts, study),
        "other_orders": [_point(candidate) for candidate in search.baselines],
        "chosen": _chosen(search.plain, search.plain_verdicts, search.chosen, "mask.json"),
        "chosen_tuned": _chosen(search.tuned, search.tuned_verdicts, search.chosen_tuned, "scales.json"),
        "rivals": None if search.rivalry is None else rivals_report.as_json(search.rivalry),
        "non_inferiority": non_inferiority(study),
        "speed": [
            {
                "name": way.name,
                "pairs_per_second": way.pairs_per_second,
                "speedup": way.speedup,
                "parameters": way.parameters,
                "held_out": None if way.quality is None else metrics(way.quality),
            }
            for way in (search.speed.ways if search.speed else ())
        ],
    }


def metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the values of the metrics that reports name."""
    values = evaluation.metrics()
    return {name: values[name] for name in NAMES}


def intervals(resamples: Resamples, evaluation: Evaluation) -> dict[str, list[float]]:
    """Return the low and the high end of each metric's interval."""
    ends = within_range(
        {name: resamples.estimate(draws).interval() for name, draws in resamples.draws(evaluation).items()}
    )
    return {name: [interval.low, interval.high] for name, interval in ends.items()}


def held_out(evaluation: Evaluation, verdict: Verdict) -> dict[str, Any]:
    """Return the quality on the held-out queries, and the verdict on it."""
    return {
        **metrics(evaluation),
        "tested": verdict.tested,
        "passed": verdict.passed,
        "loss": losses(verdict),
    }


def losses(verdict: Verdict) -> dict[str, Any]:
    """Return the losses of a verdict by metric."""
    return {
        name: {
            "delta": loss.delta,
            "bound": loss.bound,
            "standard_error": loss.error,
            "power": loss.power,
            "queries_needed": loss.queries_needed,
        }
        for name, loss in verdict.losses.items()
    }


def non_inferiority(study: Study) -> dict[str, Any]:
    """Return how the verdicts were reached."""
    return {
        "margin": study.margin,
        "metrics": list(TESTED_METRICS),
        "alpha": 0.025,
        "test": "one-sided cluster bootstrap over held-out queries, both metrics, fixed sequence",
        "queries": 0 if study.holdout is None else len(study.holdout.queries),
    }


def _path(path: Sequence[Candidate], verdicts: Sequence[Verdict], study: Study) -> list[dict[str, Any]]:
    points = []
    resamples = Resamples(study.data, study.resamples, study.seed)
    for place, candidate in enumerate(path):
        point = {**_point(candidate), "interval": intervals(resamples, candidate.quality)}
        if verdicts:
            point["holdout"] = _holdout(verdicts[place], candidate)
        points.append(point)
    return points


def _point(candidate: Candidate) -> dict[str, Any]:
    mask = HeadMask.from_matrix((candidate.weights > 0).astype(np.float32))
    return {
        "method": candidate.method,
        "heads_on": candidate.heads_on,
        "spec": mask.spec,
        **metrics(candidate.quality),
    }


def _holdout(verdict: Verdict, candidate: Candidate) -> dict[str, Any]:
    assert candidate.held_out is not None
    return held_out(candidate.held_out, verdict)


def _chosen(
    path: Sequence[Candidate], verdicts: Sequence[Verdict], place: int | None, file: str
) -> dict[str, Any] | None:
    if place is None:
        return None
    return {**_point(path[place]), "file": file, "holdout": _holdout(verdicts[place], path[place])}
