"""Makes `head_study.json`, with which the playground shades and labels the heads of a checkpoint.

    python -m models.study.head_study runs/study/report.json --model DIR

writes it beside the weights of DIR, from the report of `headroom study all`, or from those of `single` and
`roles`. Of a role it keeps the heads that hold it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from models.checkpoint.config import read_config
from models.checkpoint.extras import FILE, weights_id
from models.checkpoint.hub import locate

METRICS = ("qwk", "ndcg10", "accuracy")
ROLES = ("term_match", "previous_word", "next_word", "segmentation", "special")
"""The roles that the playground names."""


def summary(reports: list[dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Return the study of a checkpoint's heads as `head_study.json` holds it. Raises ValueError."""
    config = read_config(directory)
    single = next((report for report in reports if "heads" in report), None)
    found = (report["roles"] for report in reports if "roles" in report)
    roles: dict[str, list[dict[str, Any]]] = next(found, {})
    if single is None:
        raise ValueError("none of the reports is of `single` or `all`, which measure each head")
    heads = [_head(row, roles) for row in single["heads"]]
    if [(head["layer"], head["head"]) for head in heads] != [
        (layer, head) for layer in range(config.num_layers) for head in range(config.num_heads)
    ]:
        raise ValueError(f"the report is not of a model of {config.num_layers} × {config.num_heads} heads")
    return {
        "schema": 1,
        "weights": weights_id(directory),
        "shape": [config.num_layers, config.num_heads],
        "data": single["data"]["source"],
        "pairs": single["data"]["pairs"],
        "queries": single["data"]["queries"],
        "number_format": single.get("number_format"),
        "baseline": {metric: _short(single["baseline"][metric]) for metric in METRICS},
        "heads": heads,
    }


def _head(row: dict[str, Any], roles: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what is known of one head; `delta` and `interval` are changes with that head alone off.

    A change is None if its metric is undefined, and so are the ends of an interval of too few queries.
    """
    at = (row["layer"], row["head"])
    return {
        "layer": row["layer"],
        "head": row["head"],
        "delta": {metric: _short(row["delta"][metric]) for metric in METRICS},
        "interval": {metric: [_short(end) for end in row["interval"][metric]] for metric in METRICS},
        "p_adjusted": _short(row["p_adjusted"]),
        "roles": {
            role: _short(found["excess"])
            for role in ROLES
            for found in roles.get(role, [])
            if (found["layer"], found["head"]) == at and found["holds"]
        },
    }


def _short(value: float | None) -> float | None:
    """Return a number with four digits after the point; None if the report has none: too few queries."""
    return None if value is None else round(value, 4)


def main() -> None:
    """Read the reports named on the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path, help="report.json of a study")
    parser.add_argument("--model", help="the checkpoint's directory; none: the shipped one")
    arguments = parser.parse_args()
    directory = locate(arguments.model)
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in arguments.reports]
    study = summary(reports, directory)
    heads = study.pop("heads")
    lines = ",\n".join(f"  {json.dumps(head)}" for head in heads)
    start = json.dumps(study)[:-1]
    (directory / FILE).write_text(f'{start}, "heads": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
