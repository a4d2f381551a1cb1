"""The study of a checkpoint's heads, with which the service's page shades and labels them."""

import json
from collections.abc import Mapping
from typing import Any

from headroom.models.files import Json
from headroom.models.study.roles.scores import ROLES

METRICS = ("qwk", "ndcg10", "accuracy")


def head_study(report: Mapping[str, Any], weights: str, shape: tuple[int, int]) -> str | None:
    """Return head_study.json from the report.json of `single` or `all`; None if it has not every head.

    weights: names the checkpoint's weights (`weights_id`). shape: its layers and heads. Of a role the file
    keeps the heads that hold it.
    """
    if len(report.get("heads", ())) != shape[0] * shape[1]:
        return None
    head = {
        "schema": 1,
        "weights": weights,
        "shape": shape,
        "data": report["data"]["source"],
        "pairs": report["data"]["pairs"],
        "queries": report["data"]["queries"],
        "number_format": report["number_format"],
        "baseline": {metric: _short(report["baseline"][metric]) for metric in METRICS},
    }
    heads = ",\n".join(f"  {json.dumps(_head(row, report.get('roles', {})))}" for row in report["heads"])
    return f'{json.dumps(head)[:-1]}, "heads": [\n{heads}\n]}}\n'


def _head(row: Mapping[str, Any], roles: Mapping[str, list[Json]]) -> Json:
    """Return what is known of one head; `delta` and `interval` are changes with that head alone off."""
    return {
        "layer": row["layer"],
        "head": row["head"],
        "delta": {metric: _short(row["delta"][metric]) for metric in METRICS},
        "interval": {metric: [_short(end) for end in row["interval"][metric]] for metric in METRICS},
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
