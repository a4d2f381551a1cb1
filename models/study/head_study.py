"""The study of a checkpoint's heads, with which the service's page shades and labels them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headroom.models.files import Json
from headroom.models.quality.metrics import NAMES, Measures
from headroom.models.study.roles.scores import ROLES


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
