"""Records outcomes and clicks as they are sent, and says which of them cannot count.

A click is stored whether or not its list is there: lists are written in the background, so a click may come
first. The report joins the two (clicks.py).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Table, tuple_

from headroom.service.experiments import tables
from headroom.service.experiments.clicks import Shown, with_lists
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import (
    Click,
    Outcome,
    OutcomeReceipt,
    UnknownOutcome,
    UnknownReason,
    UnmatchedReason,
    values_of,
)
from headroom.service.experiments.interleaving import NOT_SHOWN
from headroom.service.experiments.store import Store

CLICKS_AT_ONCE = 500
"""Clicks looked up at once; both databases limit a statement's parameters."""

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

Problem = tuple[UnknownReason, str]
"""Why an outcome cannot count, for a program and for people."""


def record(
    store: Store, rows: Sequence[Outcome | Click], configs: Collection[ExperimentConfig]
) -> tuple[OutcomeReceipt, Counter[UnmatchedReason]]:
    """Store outcomes and clicks. The same id again is a duplicate, whatever its other fields hold.

    configs: the known experiments. What belongs to none of them is unknown and not stored. What has a metric
    that no such experiment declares is stored and unknown: a later config may declare it. So is a click on a
    list that is stored and did not show this title, or is another unit's.
    Return what became of them, and how many new clicks are on no shown title that is stored, by reason.
    """
    problems = _problems(rows, configs)
    undeclared = {number for number, (reason, _) in problems.items() if reason == "metric"}
    wanted = {n: row for n, row in enumerate(rows) if n in undeclared or n not in problems}
    duplicates = _insert(store, tables.outcomes, {n: r for n, r in wanted.items() if isinstance(r, Outcome)})
    clicks = {number: row for number, row in wanted.items() if isinstance(row, Click)}
    duplicates |= _insert(store, tables.clicks, clicks)
    unmatched: Counter[UnmatchedReason] = Counter()
    counting = {number: click for number, click in clicks.items() if number not in undeclared}
    judged = _judged(store, counting.values())
    for number, click in counting.items():
        # A click that is not there any more was deleted meanwhile with its lists.
        problem, has_list = judged.get((click.experiment, click.id), (None, False))
        if problem is not None:
            problems[number] = problem
        if number in duplicates:
            continue
        if problem is not None:
            unmatched["unit" if problem[0] == "unit" else "index"] += 1
        elif not has_list:
            unmatched["impression"] += 1
    duplicates -= problems.keys()
    receipt = OutcomeReceipt(
        accepted=len(rows) - len(duplicates) - len(problems),
        duplicates=len(duplicates),
        unknown=len(problems),
        unknown_outcomes=[
            UnknownOutcome(number, rows[number].id, *problems[number]) for number in sorted(problems)
        ],
        duplicate_ids=[rows[number].id for number in sorted(duplicates)],
    )
    return receipt, unmatched


def _insert(store: Store, table: Table, rows: Mapping[int, Outcome | Click]) -> set[int]:
    """Store rows by their number. Return the numbers of the duplicates."""
    if not rows:
        return set()
    # The first counts.
    values = {(row.experiment, row.id): values_of(row) for row in reversed([*rows.values()])}
    with store.write_facts() as db:
        statement = tables.insert_new(db, table).returning(table.c.experiment, table.c.id)
        # Sorted, so that two calls cannot deadlock.
        new = {tuple(row) for row in db.execute(statement, [values[key] for key in sorted(values)])}
    duplicates = set()
    for number, row in rows.items():
        if (row.experiment, row.id) not in new:
            duplicates.add(number)
        new.discard((row.experiment, row.id))  # the same again in this call is a duplicate, too
    return duplicates


def _judged(store: Store, sent: Collection[Click]) -> Mapping[tuple[str, str], tuple[Problem | None, bool]]:
    """Return of stored clicks, by experiment and id, what `_problem_on_list` says, and whether a list of
    their unit is stored."""
    keys = sorted({(click.experiment, click.id) for click in sent})
    found = {}
    for some in tables.chunks(keys, CLICKS_AT_ONCE):
        is_sent = tuple_(tables.clicks.c.experiment, tables.clicks.c.id).in_(some)
        with store.read() as db:
            for rows in with_lists(db, is_sent):
                click = rows[0]
                has_list = click.list_experiment is not None
                found[click.experiment, click.id] = (_problem_on_list(rows), has_list)
    return found


def _problem_on_list(found: Sequence[Row[Any]]) -> Problem | None:
    """Return why a click joins with none of the stored lists that it names; None if it does, or there are
    none yet.

    found: its rows of `with_lists`.
    """
    click = found[0]
    if click.list_experiment is None:
        if click.named is None:
            return None
        return "unit", f"impression {click.list_id!r} is not one of the unit {click.unit!r}"
    if len({row.content for row in found}) > len({row.list_experiment for row in found}):
        return "index", (
            f"several lists were shown to the unit as {click.list_id!r}; send each list's request with "
            "its own id"
        )
    what = click.clicked_index, click.rank, click.object_id
    if any(Shown.of(row).index_of(*what) is not None for row in found):
        return None
    return "index", _not_shown(click)


def _not_shown(click: Row[Any]) -> str:
    """Say that a list did not show the clicked title."""
    names = {"index": click.clicked_index, "object_id": click.object_id, "rank": click.rank}
    what = " at ".join(f"{name} {value!r}" for name, value in names.items() if value is not None)
    titles = sum(team != NOT_SHOWN for team in click.teams_by_index)
    ids = " and no ids" if click.object_id is not None and click.ids is None else ""
    return f"{what} was not shown in impression {click.list_id!r}, which has {titles} titles{ids}"


def _problems(rows: Sequence[Outcome | Click], configs: Collection[ExperimentConfig]) -> dict[int, Problem]:
    """Return why rows cannot count, whatever is stored, by their number."""
    by_name = {config.name: config for config in configs}
    interleaved = [config for config in configs if config.is_interleaved]
    problems: dict[int, Problem] = {}
    for number, row in enumerate(rows):
        problem = _problem_of_click(row) if isinstance(row, Click) else None
        named = [by_name[row.experiment]] if row.experiment in by_name else []
        if isinstance(row, Click) and not row.experiment:
            named = interleaved
        if problem is None:
            problem = _problem_of_experiments(row, named)
        if problem is not None:
            problems[number] = problem
    return problems


def _problem_of_experiments(row: Outcome | Click, configs: Sequence[ExperimentConfig]) -> Problem | None:
    """Return why none of the experiments that a row may belong to takes it."""
    if not configs:
        which = f"called {row.experiment!r}" if row.experiment else "that interleaves"
        return "experiment", f"there is no experiment {which}"
    name = configs[0].name
    if isinstance(row, Outcome) and configs[0].is_interleaved:
        return "impression", f"{name!r} interleaves: send the `impression` and the clicked `index`"
    if isinstance(row, Click) and not configs[0].is_interleaved:
        return "impression", f"{name!r} does not interleave: leave `impression` and `index` out"
    declared: set[str] = set()
    for config in configs:
        of_config = {source for each in config.metrics for source in each.sources}
        if not of_config or row.metric in of_config:
            return None  # an experiment that declares no metric takes any
        declared |= of_config
    names = ", ".join(sorted(declared)[:MAX_LISTED]) + (", …" if len(declared) > MAX_LISTED else "")
    owners = " and ".join(repr(config.name) for config in configs)
    return "metric", f"{owners} has no metric {row.metric!r}; there are {names}"


def _problem_of_click(row: Click) -> Problem | None:
    """Return what is wrong with a click, whatever its list is."""
    if not row.list_id:
        return "impression", "query_id is missing; it is the `impression` of the list"
    if not row.unit:
        return "unit", "client_id is missing; it is the `unit` of the request"
    if row.index is None and row.rank is None and row.object_id is None:
        return (
            "index",
            "the event has neither position.ordinal nor object.object_id, which say what was clicked",
        )
    if row.index is None and row.object_id is None and row.rank is not None and row.rank < 1:
        return "index", f"rank {row.rank} was not shown; ranks count from 1"
    if row.value <= 0:
        return "value", f"value {row.value:g} is no click; send clicks only, with a value above 0"
    return None
