"""Stores clicks on interleaved lists, so that each title of a list counts once per metric.

A click's impression says whose titles were shown where. It may not be stored yet, because impressions are
written in the background; then the click waits in `early_clicks` until it is, for an hour at most.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, delete, select, tuple_

from headroom.service.experiments import tables
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Click, SentClick, UnknownOutcome, values_of
from headroom.service.experiments.interleaving import is_genuine
from headroom.service.experiments.tables import clicks, early_clicks, impressions

CHUNK = 100
"""Clicks per transaction. The impressions of so many are read at once, each of up to some 100 KB."""

WAIT_SECONDS = 3600.0
"""How long a click waits for its impression."""

NOT_SHOWN = "-"

ImpressionKey = tuple[str, str]
"""An impression's experiment and id."""

_OF_EARLY = [early_clicks.c[name] for name in SentClick.__slots__]


@dataclass(frozen=True, slots=True)
class Shown:
    """What an impression showed. The fields are those of `Impression`."""

    teams_by_index: str
    places: Sequence[int]
    ids: Sequence[str] | None

    def index_of(self, click: SentClick) -> int | None:
        """Return the index of the clicked title in the request; None if the list did not show it.

        If the request sent ids, a click's object id decides. Else its rank does.
        """
        index = click.index
        if index is None and click.object_id is not None and self.ids is not None:
            index = next((place for place in self.places if self.ids[place] == click.object_id), None)
        elif index is None and click.rank is not None and 1 <= click.rank <= len(self.places):
            index = self.places[click.rank - 1]
        if index is None or not 0 <= index < len(self.teams_by_index):
            return None
        return None if self.teams_by_index[index] == NOT_SHOWN else index


@dataclass(slots=True)
class Recorded:
    """What became of clicks: those that are new by their number, and those that are not stored."""

    new: set[int]
    unknown: list[UnknownOutcome]


def experiment_of(click: SentClick, interleaving: Collection[ExperimentConfig]) -> str | None:
    """Return the experiment whose impression a click names; None if its unit never saw such a list.

    The id of an impression holds a code of its experiment and unit, so this needs no database.
    """
    for config in interleaving:
        is_named = click.experiment in (None, config.name)
        if is_named and is_genuine(click.impression, config.salt, config.name, click.unit):
            return config.name
    return None


def owners(db: Connection, experiments: Collection[str], ids: Collection[str]) -> set[str]:
    """Return which of the ids are those of stored impressions."""
    of_ids = and_(impressions.c.experiment.in_(experiments), impressions.c.id.in_(ids))
    return set(db.scalars(select(impressions.c.id).where(of_ids)))


def record(db: Connection, sent: Mapping[int, SentClick], now: float) -> Recorded:
    """Store clicks of genuine impressions. The first on a title counts, by the numbers' order.

    sent: by number, at most CHUNK, each with its experiment. now: seconds since the epoch.
    """
    keys = {(str(click.experiment), click.impression) for click in sent.values()}
    shown = _shown(db, keys)
    waiting = _early(db, keys)
    _move(db, [click for click in waiting if _key(click) in shown], shown)
    ready: dict[int, Click] = {}
    early: dict[int, SentClick] = {}
    unknown: list[UnknownOutcome] = []
    for number, click in sent.items():
        title_list = shown.get(_key(click))
        if title_list is None:
            early[number] = click
        elif (index := title_list.index_of(click)) is None:
            unknown.append(UnknownOutcome(number, click.id, "index", _not_shown(click, title_list)))
        else:
            ready[number] = _click(click, index)
    known = {_title(click) for click in waiting if _key(click) not in shown}
    return Recorded(_add(db, ready) | _add_early(db, early, known, now), unknown)


def is_due(db: Connection, now: float) -> bool:
    """Return whether `settle` has something to do."""
    expired = select(early_clicks.c.id).where(early_clicks.c.received < now - WAIT_SECONDS).limit(1)
    return any(db.execute(query).first() is not None for query in (_ready().limit(1), expired))


def settle(db: Connection, now: float) -> tuple[int, int]:
    """Move a portion of the early clicks whose impressions are stored, and drop those that waited too long.

    Return how many left `early_clicks`, and how many of them do not count: those that are dropped, or on a
    title that was not shown.
    """
    ready = [SentClick(*row) for row in db.execute(_ready().limit(CHUNK))]
    unseen = _move(db, ready, _shown(db, set(map(_key, ready))))
    expired = delete(early_clicks).where(early_clicks.c.received < now - WAIT_SECONDS)
    dropped = db.execute(expired).rowcount
    return len(ready) + dropped, unseen + dropped


def _ready() -> Select[Any]:
    """Return a query of the early clicks whose impressions are stored."""
    is_stored = and_(
        impressions.c.experiment == early_clicks.c.experiment, impressions.c.id == early_clicks.c.impression
    )
    return select(*_OF_EARLY).select_from(early_clicks.join(impressions, is_stored))


def _key(click: SentClick) -> ImpressionKey:
    return str(click.experiment), click.impression


def _title(click: SentClick) -> tuple[object, ...]:
    """Return what tells a click from one on another title, as far as that is known before its impression."""
    return click.experiment, click.impression, click.metric, click.index, click.rank, click.object_id


def _click(click: SentClick, index: int) -> Click:
    return Click(
        experiment=str(click.experiment),
        id=click.id,
        unit=click.unit,
        metric=click.metric,
        impression=click.impression,
        index=index,
        value=click.value,
        time=click.time,
    )


def _shown(db: Connection, keys: Iterable[ImpressionKey]) -> dict[ImpressionKey, Shown]:
    """Return the stored ones of some impressions."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for experiment, impression in keys:
        ids[experiment].append(impression)
    shown = {}
    for experiment, of_experiment in ids.items():
        query = select(impressions).where(
            impressions.c.experiment == experiment, impressions.c.id.in_(of_experiment)
        )
        for row in db.execute(query):
            sent_ids = None if row.ids is None else json.loads(row.ids)
            shown[experiment, row.id] = Shown(row.teams_by_index, json.loads(row.places), sent_ids)
    return shown


def _early(db: Connection, keys: Collection[ImpressionKey]) -> list[SentClick]:
    """Return the early clicks of some impressions."""
    columns = tuple_(early_clicks.c.experiment, early_clicks.c.impression)
    query = select(*_OF_EARLY).where(columns.in_(sorted(keys)))
    return list(starmap(SentClick, db.execute(query)))


def _move(db: Connection, early: Sequence[SentClick], shown: Mapping[ImpressionKey, Shown]) -> int:
    """Move early clicks to `clicks`. Return how many are on titles that were not shown; they are dropped."""
    if not early:
        return 0
    seen = {}
    for number, click in enumerate(early):
        index = shown[_key(click)].index_of(click)
        if index is not None:
            seen[number] = _click(click, index)
    _add(db, seen)
    of_click = [early_clicks.c[name] == bindparam(f"{name}_key") for name in ("experiment", "id")]
    keys = sorted((str(click.experiment), click.id) for click in early)
    db.execute(
        delete(early_clicks).where(*of_click),
        [{"experiment_key": experiment, "id_key": click_id} for experiment, click_id in keys],
    )
    return len(early) - len(seen)


def _add(db: Connection, ready: Mapping[int, Click]) -> set[int]:
    """Store clicks. Return the numbers of those that are new."""
    first: dict[tuple[Any, ...], int] = {}
    for number, click in ready.items():
        first.setdefault((click.experiment, click.impression, click.metric, click.index), number)
    if not first:
        return set()
    # Sorted, so that two calls cannot deadlock.
    rows = [values_of(ready[first[key]]) for key in sorted(first)]
    statement = tables.insert_once(db, clicks).returning(*clicks.primary_key)
    return {first[tuple(row)] for row in db.execute(statement, rows)}


def _add_early(
    db: Connection, early: Mapping[int, SentClick], known: set[tuple[object, ...]], now: float
) -> set[int]:
    """Store clicks whose impression is not stored. Return the numbers of those that are new."""
    first: dict[ImpressionKey, int] = {}
    titles = set(known)
    for number, click in early.items():
        if _title(click) not in titles:
            titles.add(_title(click))
            first.setdefault((str(click.experiment), click.id), number)
    if not first:
        return set()
    rows = [values_of(early[first[key]]) | {"received": now} for key in sorted(first)]
    statement = tables.insert_new(db, early_clicks).returning(*early_clicks.primary_key)
    return {first[tuple(row)] for row in db.execute(statement, rows)}


def _not_shown(click: SentClick, shown: Shown) -> str:
    """Say that a list did not show the clicked title."""
    if click.index is not None:
        what = f"index {click.index}"
    elif click.object_id is not None and shown.ids is not None:
        what = f"object_id {click.object_id!r}"
    elif click.rank is not None:
        what = f"rank {click.rank}"
    else:
        return f"the request of impression {click.impression!r} sent no ids, so the event needs an ordinal"
    return f"{what} was not shown in impression {click.impression!r}, which has {len(shown.places)} titles"
