"""A plain model of docs/experiments-data.md: what a report says of the rows that a database holds.

Written from that page, with dicts and loops, to referee the code. A row of the log is a dict of `kind`,
`time`, `experiment`, `arm`, `traffic`, `experiments` (declared configs by name) and `variants` (names). Facts
are lists of dicts by the name of their table.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from headroom.service.experiments.buckets import bucket

Row = dict[str, Any]
Log = Sequence[Row]
Facts = dict[str, list[Row]]

BUCKETS = 10_000


def identity(config: Row) -> Any:
    return config["kind"], config["salt"], [(a["name"], a["variant"], a["weight"]) for a in config["arms"]]


def arms_of(config: Row) -> tuple[str, list[str]]:
    """Control and the others."""
    names = [arm["name"] for arm in config["arms"]]
    control = "control" if "control" in names else names[0]
    return control, [name for name in names if name != control]


def state(log: Log, name: str) -> Row | None:
    """What the rows say of an experiment after the last of them; None if none declares it."""
    first: Row | None = None
    declared: Row = {}
    is_file = False
    in_force: Row = {"experiments": {}, "variants": None}
    ramped = None
    shipped = None
    is_stopped = False
    rolled_back = set()
    for row in log:
        config = row["experiments"].get(name)
        if row["kind"] == "config":
            in_force = row
        if config is not None:
            first = first or config
            if identity(config) == identity(first):
                declared = config
                is_file = is_file or row["kind"] == "config"
            continue
        if first is None or row["experiment"] != name:
            continue
        if row["kind"] == "ramp":
            ramped = row["traffic"]
        elif row["kind"] == "ship":
            shipped = row["arm"]
        elif row["kind"] == "stop" or (row["kind"] == "rollback" and row["arm"] is None):
            shipped = None
            is_stopped = True
        elif row["kind"] == "rollback" and row["arm"] in arms_of(first)[1]:
            rolled_back.add(row["arm"])
    if first is None:
        return None
    is_over = is_stopped or shipped is not None or rolled_back >= set(arms_of(first)[1])
    its = {"first": first, "config": declared, "is_over": is_over, "shipped": shipped}
    now = in_force["experiments"].get(name)
    is_changed = now is not None and identity(now) != identity(first)
    if is_over:
        status = "shipped" if shipped is not None else "stopped" if is_stopped else "rolled_back"
    else:
        is_out = now is None if is_file else not is_changed and is_in_the_way(log, declared, in_force)
        status = "paused" if is_changed or is_out else "running"
    traffic = declared["traffic"] if ramped is None else ramped
    return its | {"status": status, "rolled_back": rolled_back, "traffic": traffic}


def is_in_the_way(log: Log, config: Row, in_force: Row) -> bool:
    """Whether the config in force stands in the way of an experiment that was started over HTTP."""
    needed = {arm["variant"] for arm in config["arms"]}
    if in_force["variants"] is not None and not needed <= set(in_force["variants"]):
        return True
    for name in in_force["experiments"]:
        others = state(log, name)
        assert others is not None
        if others["is_over"]:
            continue
        other = others["config"]
        (start, end), (other_start, other_end) = config["slots"], other["slots"]
        if (start < other_end and other_start < end) or config["salt"] == other["salt"]:
            return True
    return False


def periods(log: Log, name: str) -> list[Row]:
    """The states of an experiment, each with the times from and until which it holds."""
    found: list[Row] = []
    clock = -math.inf
    for number, row in enumerate(log, 1):
        clock = max(clock, row["time"])
        now = state(log[:number], name)
        if now is None:
            continue
        if found and found[-1]["since"] == clock:
            found.pop()
        found.append(now | {"since": clock, "until": math.inf})
    for period, later in pairwise(found):
        period["until"] = later["since"]
    return found


def last_act(log: Log, name: str) -> float:
    """The time of the last row of an experiment's own."""
    number = max(number for number, row in enumerate(log, 1) if row["experiment"] == name)
    return max(float(row["time"]) for row in log[:number])


def exposes(now: Row, arm: str, position: int, slot: int | None) -> bool:
    """Whether a state gives a unit its arm. position: its bucket; -1 if the caller chose the arm."""
    config = now["config"]
    if now["status"] != "running" or arm in now["rolled_back"]:
        return False
    if position == -1:
        return True
    weights = {each["name"]: each["weight"] for each in config["arms"]}
    if arm == "interleaved":
        weights = {arm: 1}
    first = 0
    for name, weight in weights.items():
        width = BUCKETS * weight // sum(weights.values())
        if name == arm:
            break
        first += width
    start, end = config["slots"]
    assert slot is not None
    return first <= position < first + int(now["traffic"] * width) and start <= slot < end


def arm_of(states: Mapping[str, Row | None], unit: str) -> tuple[str, str] | None:
    """The experiment and arm that a unit gets."""
    for name, now in states.items():
        if now is None:
            continue
        config = now["config"]
        arms = [arm["name"] for arm in config["arms"]] if config["kind"] == "ab" else ["interleaved"]
        for arm in arms:
            if exposes(now, arm, bucket(config["salt"], unit), bucket("layer", unit)):
                return name, arm
    return None


def report(log: Log, facts: Facts, name: str, now: float) -> Row:
    """What a report at a time says."""
    found = periods(log, name)
    config = found[-1]["config"]
    control, treatments = arms_of(config)
    exposed: dict[str, list[Row]] = {}
    for row in facts["exposures"]:
        if row["experiment"] == name:
            exposed.setdefault(row["unit"], []).append(row)
    units = {unit: rows[0] for unit, rows in exposed.items() if len(rows) == 1}
    is_list = config["kind"] == "interleave"
    counts = dict.fromkeys(["interleaved"] if is_list else [arm["name"] for arm in config["arms"]], 0)
    for row in units.values():
        counts[row["arm"]] += 1
    result: Row = {"units": counts, "in_both_arms": len(exposed) - len(units), "unmatched": {}, "metrics": {}}
    if is_list:
        return result | preferences(facts, config, found, units)
    for arm in treatments:
        for metric in config["metrics"]:
            result["metrics"][arm, metric["name"]] = {
                "control": compared(facts, metric, found, units, control, arm, now),
                "arm": compared(facts, metric, found, units, arm, arm, now),
            }
    return result


def compared(
    facts: Facts, metric: Row, found: Sequence[Row], units: dict[str, Row], one: str, arm: str, now: float
) -> Row:
    """Units and value of one arm, control or `arm`, while `arm` ran."""
    window = None if metric["window_hours"] is None else 3600 * metric["window_hours"]
    since = [-math.inf, *(period["since"] for period in found[1:])]  # callers round times down
    times = list(zip(since, found, strict=True))
    ends = [first for first, period in times if period["is_over"] or arm in period["rolled_back"]]
    end = min(ends, default=math.inf)
    number = 0
    total = 0.0
    total_denominator = 0.0
    for unit, row in units.items():
        begin = row["time"]
        if row["arm"] != one or begin >= end:
            continue
        spans = [
            (first, min(period["until"], end), exposes(period, one, row["bucket"], row["slot"]))
            for first, period in times
            if first < end
        ]
        if window is not None:
            if begin > now - window or begin + window >= end:
                continue
            if any(first <= begin + window and begin < last and not has for first, last, has in spans):
                continue
        sums = {metric["name"]: 0.0, metric["denominator"]: 0.0}
        for outcome in facts["outcomes"]:
            time = outcome["time"]
            is_its = (outcome["experiment"], outcome["unit"]) == (row["experiment"], unit)
            if not is_its or outcome["metric"] not in sums or time <= begin - 1:
                continue
            if window is None:
                counts = any(first <= time < last and has for first, last, has in spans)
            else:
                counts = time < begin + window
            if counts:
                sums[outcome["metric"]] += outcome["value"]
        number += 1
        value = sums[metric["name"]]
        total += float(value > 0) if metric["kind"] == "proportion" else value
        total_denominator += sums[metric["denominator"]] if metric["kind"] == "ratio" else 1.0
    return {"units": number, "value": total / total_denominator if total_denominator else None}


def preferences(facts: Facts, config: Row, found: Sequence[Row], units: dict[str, Row]) -> Row:
    """Votes of units by metric, and clicks that count for nobody."""
    name = config["name"]
    end = min([period["since"] for period in found if period["is_over"]], default=math.inf)
    shown: dict[Any, Row] = {}  # a list and its content, the first time
    for row in facts["impressions"]:
        key = row["experiment"], row["unit"], row["id"], row["teams_by_index"], row["places"], row["ids"]
        if key not in shown or row["time"] < shown[key]["time"]:
            shown[key] = row
    counting = [
        row
        for row in shown.values()
        if row["experiment"] == name and row["unit"] in units and row["time"] < end
    ]
    differing = sum(bool(set("ct") & set(row["teams_by_index"])) for row in counting)
    unmatched: Counter[str] = Counter()
    clicked: dict[Any, list[tuple[Row, float, str]]] = {}  # by metric, list and title
    for click in facts["clicks"]:
        if click["metric"] not in [metric["name"] for metric in config["metrics"]]:
            continue
        named = [row for row in shown.values() if click["list_id"] in (row["id"], row["query_id"])]
        own = [row for row in named if row["experiment"] == name]
        if click["experiment"] == "":
            of_others = any(row["unit"] == click["unit"] for row in named if row not in own)
            is_during = found[0]["since"] <= click["time"] < end
            is_mine = any(row["unit"] == click["unit"] for row in own)
            if not is_mine and (of_others or not is_during or (named and not own)):
                continue
        elif click["experiment"] != name:
            continue
        of_unit = [row for row in own if row["unit"] == click["unit"]]
        if not of_unit:
            unmatched["unit" if own else "impression"] += 1
            continue
        if len(of_unit) > 1:
            unmatched["impression"] += 1
            continue
        title = clicked_title(click, of_unit[0])
        if title is None:
            unmatched["index"] += 1
        elif of_unit[0]["teams_by_index"][title] in "ct" and of_unit[0] in counting:
            place = click["metric"], of_unit[0]["id"], of_unit[0]["unit"], title
            team = of_unit[0]["teams_by_index"][title]
            clicked.setdefault(place, []).append((of_unit[0], click["time"], team))
    metrics = {}
    for metric in config["metrics"]:
        window = math.inf if metric["window_hours"] is None else 3600 * metric["window_hours"]
        votes: dict[str, list[int]] = {}
        for place, times in clicked.items():
            row, _, team = times[0]
            if place[0] == metric["name"] and min(time for _, time, _ in times) < row["time"] + window:
                votes.setdefault(row["unit"], []).append(1 if team == "t" else -1)
        values = [sum(signs) / len(signs) for signs in votes.values()]
        metrics[arms_of(config)[1][0], metric["name"]] = {
            "units": len(values),
            "value": math.fsum(values) / len(values) if values else None,
            "wins": sum(value > 0 for value in values),
            "losses": sum(value < 0 for value in values),
            "ties": sum(value == 0 for value in values),
            "impressions": len(counting),
            "differing": differing,
        }
    return {"unmatched": dict(unmatched), "metrics": metrics}


def clicked_title(click: Row, row: Row) -> int | None:
    """The index of the clicked title in the request; None if the list did not show it."""
    places: list[int] = row["places"]
    if click["index"] is not None:
        index: int = click["index"]
        return index if index in places else None
    rank = click["rank"]
    at_rank = places[rank - 1] if rank is not None and 1 <= rank <= len(places) else None
    if click["object_id"] is None or row["ids"] is None:
        return at_rank
    alike = [place for place in places if row["ids"][place] == click["object_id"]]
    if len(alike) == 1:
        return alike[0]
    return at_rank if at_rank in alike else None
