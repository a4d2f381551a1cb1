"""Logs, facts and reports as the plain model of reference.py takes and makes them."""

import json
from typing import Any

from sqlalchemy import select

from headroom.service.experiments.buckets import bucket
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig
from headroom.service.experiments.events import Impression
from headroom.service.experiments.log import Declared, Entry
from headroom.service.experiments.report import Report
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import metadata, owner
from tests.service.experiments import reference

WINDOW = 10.0
"""Seconds."""
FACTS = ("exposures", "outcomes", "clicks", "impressions")
METRICS = (
    {"name": "click"},
    {"name": "buy", "kind": "proportion", "window_hours": WINDOW / 3600},
    {"name": "rate", "kind": "ratio", "denominator": "click"},
)


def _experiment(name: str, slots: tuple[int, int], *treatments: str, **more: Any) -> ExperimentConfig:
    """An experiment whose control has as much weight as the other arms together."""
    weights = {"control": len(treatments), **dict.fromkeys(treatments, 1)}
    arms = [{"name": arm, "variant": arm, "weight": weight} for arm, weight in weights.items()]
    fields = {"name": name, "salt": name, "slots": slots, "arms": arms, "metrics": METRICS}
    return ExperimentConfig.model_validate(fields | more)


PRUNE = _experiment("prune", (0, 2500), "a", "b")
FREE = _experiment("free", (2500, 5000), "a", metrics=METRICS[:2])
TAKER = _experiment("taker", (4000, 5000), "b", metrics=METRICS[:2])
ORDER = _experiment(
    "order",
    (5000, 10000),
    "a",
    kind="interleave",
    metrics=[{"name": "click", "window_hours": WINDOW / 3600}, {"name": "buy"}],
)
AGAIN = _experiment("again", (5000, 10000), "b", kind="interleave", metrics=METRICS[:1])
"""The lists of its units have the names of theirs in `order`."""
CONFIGS = (PRUNE, FREE, TAKER, ORDER, AGAIN)
VARIANTS = dict.fromkeys(("control", "a", "b"), "a score")


def changed(config: ExperimentConfig, **fields: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate(config.model_dump() | fields)


FILES = {
    "right": (PRUNE, ORDER),
    "less": (changed(PRUNE, traffic=0.4, slots=(0, 1250)), changed(ORDER, traffic=0.5, slots=(6000, 10000))),
    "slots": (changed(PRUNE, slots=(0, 1250)), ORDER),
    "metrics": (changed(PRUNE, metrics=METRICS[1:]), changed(ORDER, metrics=[{"name": "buy"}])),
    "lacks": (ORDER,),
    "empty": (),
    "salted": (changed(PRUNE, salt="t"), ORDER),
    "taken": (PRUNE, TAKER),
    "both": (PRUNE, FREE, ORDER),
    "wrong": (changed(FREE, salt="t"), ORDER),
    "variant": (ORDER,),
    "again": (PRUNE, AGAIN),
}


def declaration(file: str) -> Declared:
    names = ("control", "a") if file == "variant" else tuple(VARIANTS)
    return Declared(FILES[file], {name: VARIANTS[name] for name in names})


def units_of(config: ExperimentConfig) -> list[str]:
    """Units within an experiment's slots, two of each arm or four of an interleaved one."""
    start, end = config.slots
    inside = [unit for unit in map(str, range(3000)) if start <= bucket(LAYER_SALT, unit) < end]
    number = 4 if config.is_interleaved else 2
    return [
        unit
        for first, last in config.spans.values()
        for unit in [each for each in inside if first <= bucket(config.salt, each) < last][:number]
    ]


UNITS = list(dict.fromkeys(unit for config in CONFIGS for unit in units_of(config)))
READERS = units_of(ORDER)


def plain(entry: Entry) -> reference.Row:
    """A row of the log as the model takes it."""
    has = entry.declared or Declared()
    return {
        "kind": entry.kind,
        "time": entry.time,
        "experiment": entry.experiment,
        "arm": entry.arm,
        "traffic": entry.traffic,
        "experiments": {config.name: config.model_dump() for config in has.experiments},
        "variants": None if has.variants is None else list(has.variants),
    }


def facts_of(store: Store) -> reference.Facts:
    """Return the facts of a database as the model takes them."""
    with store.read_all() as db:
        facts = {
            table: [dict(row) for row in db.execute(select(metadata.tables[table])).mappings()]
            for table in FACTS
        }
    for row in facts["impressions"]:
        row["places"] = tuple(json.loads(row["places"]))
        row["ids"] = None if row["ids"] is None else tuple(json.loads(row["ids"]))
    return facts


def clear(store: Store) -> None:
    """Delete all rows, so that a database, whose statements are compiled, serves many tests."""
    with store.write() as db:
        for table in metadata.sorted_tables:
            if table is not owner:
                db.execute(table.delete())


def named(lists: list[Impression], name: str, unit: str) -> set[str]:
    """Return the experiments of a unit's lists of this name."""
    return {shown.experiment for shown in lists if shown.unit == unit and name in (shown.id, shown.query_id)}


def summary(report: Report) -> reference.Row:
    """A report as the model makes it."""
    metrics: dict[Any, Any] = {}
    for arm in report.arms:
        for metric in arm.metrics:
            votes = metric.preference
            if votes is None:
                control = {"units": metric.control_units, "value": metric.control_value}
                found: Any = {"control": control, "arm": {"units": metric.units, "value": metric.value}}
            else:
                names = ("wins", "losses", "ties", "impressions", "differing")
                found = {"units": metric.units, "value": metric.difference}
                found |= {name: getattr(votes, name) for name in names}
            metrics[arm.arm, metric.metric] = found
    return {
        "units": dict(report.exposures),
        "in_both_arms": report.in_both_arms,
        "unmatched": {reason: number for reason, number in report.unmatched.items() if number},
        "metrics": metrics,
    }


def rounded(value: Any) -> Any:
    """The same with nine decimals: a mean of sums around a mean has the last digits of a double."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return round(value, 9) if isinstance(value, float) else value
