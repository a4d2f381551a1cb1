"""Stores clicks on interleaved lists, so that each title of a list counts once per metric.

A click's impression says whose titles were shown where. It may not be stored yet, because impressions are
written in the background; then the click waits in `early_clicks` until it is.

A click names its list by the id that the answer had, which proves that its unit was shown the list, or by the
caller's own `query_id`, which proves nothing before the list is stored.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    select,
    tuple_,
    update,
)

from headroom.service.experiments import tables
from headroom.service.experiments.buckets import bucket
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig
from headroom.service.experiments.events import Click, SentClick, UnknownOutcome, values_of
from headroom.service.experiments.interleaving import impression_id, is_genuine
from headroom.service.experiments.tables import clicks, early_clicks, impressions

CHUNK = 100
"""Clicks per transaction."""

ROWS_AT_ONCE = 10
"""Impressions in memory at once."""

WAIT_SECONDS = 3600.0
"""How long a click waits for its impression."""

UNCERTAIN_WAIT_SECONDS = 60.0
"""The same of a click by a query id, which may be that of a list that this service never saw."""

MAX_WAITING = 200
"""Clicks that wait for one impression, at most. They cannot be checked before it is there, so a caller could
send any number."""

MAX_EARLY = 100_000
"""Clicks that wait, at most, about: replicas that add some at once do not see each other's."""

MAX_UNCERTAIN = 10_000
"""The same of clicks by a query id. Each second all that wait are looked up, so these are few."""

NOT_SHOWN = "-"

ImpressionKey = tuple[str, str]
"""An impression's experiment and id."""

_OF_IMPRESSION = (impressions.c.experiment, impressions.c.id)
_OF_EARLY = [early_clicks.c[name] for name in SentClick.__slots__]


@dataclass(frozen=True, slots=True)
class Shown:
    """The titles that an impression showed. `time`, `teams_by_index` and `places` are those of `Impression`.

    by_id: the indices of the shown titles with an id, for the ids of the clicks that are looked at; None if
        the request sent no ids.
    is_reused: whether another list was shown under the same query id, so that no click says which it is on.
    """

    time: float
    teams_by_index: str
    places: Sequence[int]
    by_id: Mapping[str, Sequence[int]] | None
    is_reused: bool = False

    def index_of(self, click: SentClick) -> int | None:
        """Return the index of the clicked title in the request; None if the list did not show it.

        If the request sent ids, a click's object id decides; of several titles with this id, the rank does.
        Else the rank decides alone.
        """
        if self.is_reused:
            return None
        index = click.index
        if index is None:
            at_rank = None
            if click.rank is not None and 1 <= click.rank <= len(self.places):
                at_rank = self.places[click.rank - 1]
            alike = self.with_id(click)
            index = at_rank if alike is None or at_rank in alike else None
            if alike is not None and len(alike) == 1:
                index = alike[0]
        if index is None or not 0 <= index < len(self.teams_by_index):
            return None
        return None if self.teams_by_index[index] == NOT_SHOWN else index

    def with_id(self, click: SentClick) -> Sequence[int] | None:
        """Return the shown titles that a click's object id names; None if no ids are compared."""
        if click.object_id is None or self.by_id is None:
            return None
        return self.by_id.get(click.object_id, ())


@dataclass(slots=True)
class Recorded:
    """The fate of clicks: those that are new by their number, and those that are not stored.

    crowded_out: how many of the latter were not kept because too many wait.
    """

    new: set[int]
    unknown: list[UnknownOutcome]
    crowded_out: int = 0


def experiment_of(click: SentClick, interleaving: Collection[ExperimentConfig], key: str) -> str | None:
    """Return the experiment whose impression a click names; None if its unit never saw such a list.

    The id of an impression holds a code of its experiment and unit, so this needs no database.
    key: the database's, of impressions.
    """
    for config in interleaving:
        is_named = click.experiment in (None, config.name)
        if is_named and is_genuine(click.impression, key, config.name, click.unit):
            return config.name
    return None


def by_query_id(click: SentClick, interleaving: Collection[ExperimentConfig], key: str) -> list[SentClick]:
    """Return a click whose impression is a query id as it would be on a list of each experiment.

    The unit may have seen a list before the experiment's slots changed. In the order of `interleaving`.
    """
    return [
        replace(
            click,
            experiment=config.name,
            impression=impression_id(key, config.name, click.unit, click.impression),
        )
        for config in interleaving
        if click.experiment in (None, config.name)
    ]


def has_slot(config: ExperimentConfig, unit: str) -> bool:
    """Return whether a unit's slot is one of the experiment's."""
    return config.slots[0] <= bucket(LAYER_SALT, unit) < config.slots[1]


def stored(db: Connection, keys: Collection[ImpressionKey]) -> set[ImpressionKey]:
    """Return which of the impressions are stored."""
    columns = tuple_(*_OF_IMPRESSION)
    found: set[ImpressionKey] = set()
    for chunk in tables.chunks(sorted(keys), CHUNK):
        for experiment, impression in db.execute(select(*_OF_IMPRESSION).where(columns.in_(chunk))):
            found.add((experiment, impression))
    return found


def owners(db: Connection, experiments: Collection[str], ids: Collection[str]) -> set[str]:
    """Return which of the ids are those of stored impressions."""
    of_ids = and_(impressions.c.experiment.in_(experiments), impressions.c.id.in_(ids))
    return set(db.scalars(select(impressions.c.id).where(of_ids)))


def record(
    db: Connection, sent: Mapping[int, SentClick], now: float, names: Mapping[str, str] | None = None
) -> Recorded:
    """Store clicks of genuine impressions. The first on a title counts, by the numbers' order.

    sent: by number, at most CHUNK, each with its experiment. now: seconds since the epoch.
    names: by impression, the query ids that the clicks named in its place.
    """
    names = names or {}
    keys = {(str(click.experiment), click.impression) for click in sent.values()}
    waiting = _early(db, keys)
    shown = _shown(db, [*sent.values(), *waiting])
    _move(db, [click for click in waiting if key_of(click) in shown], shown, now)
    ready: dict[int, Click] = {}
    early: dict[int, SentClick] = {}
    recorded = Recorded(set(), [])
    for number, click in sent.items():
        title_list = shown.get(key_of(click))
        if title_list is None:
            early[number] = click
        elif (index := title_list.index_of(click)) is None:
            name = names.get(click.impression, click.impression)
            message = _not_shown(click, title_list, name)
            recorded.unknown.append(UnknownOutcome(number, click.id, "index", message))
        else:
            ready[number] = _click(click, index, title_list, now)
    recorded.new = _add(db, ready)
    if early:
        _keep(db, early, [click for click in waiting if key_of(click) not in shown], now, recorded)
    return recorded


def _keep(
    db: Connection,
    early: Mapping[int, SentClick],
    waiting: Sequence[SentClick],
    now: float,
    recorded: Recorded,
) -> None:
    """Store clicks until their list is stored, as long as there is room, and add their fate to `recorded`.

    waiting: the clicks on the same lists that wait already.
    """
    is_full = _number_waiting(db, early_clicks.c.is_uncertain.is_(None), MAX_EARLY) >= MAX_EARLY
    numbers_waiting = Counter(map(key_of, waiting))
    kept = {}
    for number, click in early.items():
        if is_full:
            recorded.crowded_out += 1
            message = f"{MAX_EARLY:,} clicks wait for lists that are not stored; send it again in a minute"
        elif numbers_waiting[key_of(click)] >= MAX_WAITING:
            message = f"impression {click.impression!r} is not stored, and {MAX_WAITING} clicks wait for it"
        else:
            numbers_waiting[key_of(click)] += 1
            kept[number] = click
            continue
        recorded.unknown.append(UnknownOutcome(number, click.id, "impression", message))
    if kept:
        _confirm(db, set(map(key_of, kept.values())))
        known = set(map(_title, waiting))
        recorded.new |= _add_early(db, kept, known, now)


def hold(db: Connection, sent: Mapping[int, SentClick], now: float) -> None:
    """Keep clicks by query ids of lists that are not stored, which may yet come, as long as there is room.

    sent: by number, at most CHUNK, each with the experiment and the impression that it would be on.
    """
    if _number_waiting(db, early_clicks.c.is_uncertain == 1, MAX_UNCERTAIN) >= MAX_UNCERTAIN:
        return
    waiting = _early(db, {key_of(click) for click in sent.values()})
    numbers_waiting = Counter(map(key_of, waiting))
    early = {}
    for number, click in sent.items():
        numbers_waiting[key_of(click)] += 1
        if numbers_waiting[key_of(click)] <= MAX_WAITING:
            early[number] = click
    known = set(map(_title, waiting))
    _add_early(db, early, known, now, is_uncertain=True)


def _confirm(db: Connection, keys: Collection[ImpressionKey]) -> None:
    """Let the clicks by query ids on these lists wait as long as others, as the lists were surely shown."""
    columns = tuple_(early_clicks.c.experiment, early_clicks.c.impression)
    theirs = and_(early_clicks.c.is_uncertain == 1, columns.in_(sorted(keys)))
    db.execute(update(early_clicks).where(theirs).values(is_uncertain=None))


def _number_waiting(db: Connection, kind: ColumnElement[bool], limit: int) -> int:
    """Return how many clicks of a kind wait, or the limit if there are more."""
    query = select(early_clicks.c.id).where(kind).limit(limit)
    return db.scalar(select(func.count()).select_from(query.subquery())) or 0


def is_due(db: Connection, now: float) -> bool:
    """Return whether `settle` has something to do."""
    expired = (select(early_clicks.c.id).where(old).limit(1) for old in (_unaccepted(now), _old(now)))
    return any(db.execute(query).first() is not None for query in (_ready().limit(1), *expired))


def _old(now: float) -> ColumnElement[bool]:
    return early_clicks.c.received < now - WAIT_SECONDS


def _unaccepted(now: float) -> ColumnElement[bool]:
    """Return the condition of clicks by query ids that waited too long."""
    return and_(early_clicks.c.is_uncertain == 1, early_clicks.c.received < now - UNCERTAIN_WAIT_SECONDS)


def settle(db: Connection, now: float) -> tuple[int, int]:
    """Move a portion of the early clicks whose impressions are stored, and drop those that waited too long.

    Return how many left `early_clicks`, and how many of them are lost: those that are dropped, or on a title
    that was not shown. A click by a query id that is dropped was never accepted, so it is not lost.
    """
    ready = [SentClick(*row) for row in db.execute(_ready().limit(CHUNK))]
    unseen = _move(db, ready, _shown(db, ready), now)
    unaccepted = db.execute(delete(early_clicks).where(_unaccepted(now))).rowcount
    dropped = db.execute(delete(early_clicks).where(_old(now))).rowcount
    return len(ready) + unaccepted + dropped, unseen + dropped


def _ready() -> Select[Any]:
    """Return a query of the early clicks whose impressions are stored."""
    is_stored = and_(
        impressions.c.experiment == early_clicks.c.experiment, impressions.c.id == early_clicks.c.impression
    )
    return select(*_OF_EARLY).select_from(early_clicks.join(impressions, is_stored))


def key_of(click: SentClick) -> ImpressionKey:
    """Return the experiment and the impression of a click that has its experiment."""
    return str(click.experiment), click.impression


def _title(click: SentClick) -> tuple[object, ...]:
    """Return what tells a click from one on another title, as far as that is known before its impression."""
    return click.experiment, click.impression, click.metric, click.index, click.rank, click.object_id


def _click(click: SentClick, index: int, shown: Shown, now: float) -> Click:
    """Return the click on a title.

    No user clicks before the list is shown or after the click is sent. So a user's wrong clock makes no click
    count at another time, and none is kept for ever, or deleted at once.
    """
    return Click(
        experiment=str(click.experiment),
        id=click.id,
        unit=click.unit,
        metric=click.metric,
        impression=click.impression,
        index=index,
        value=click.value,
        time=max(shown.time, min(click.time, now)),
    )


def _shown(db: Connection, sent: Iterable[SentClick]) -> dict[ImpressionKey, Shown]:
    """Return the stored ones of the impressions of clicks."""
    object_ids: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for click in sent:
        of_impression = object_ids[str(click.experiment)][click.impression]
        if click.object_id is not None:
            of_impression.add(click.object_id)
    shown = {}
    for experiment, by_impression in object_ids.items():
        for names in tables.chunks(sorted(by_impression), ROWS_AT_ONCE):  # the ids of one may take 1 MB
            query = select(impressions).where(
                impressions.c.experiment == experiment, impressions.c.id.in_(names)
            )
            for row in db.execute(query):
                places = orjson.loads(row.places)
                by_id = None if row.ids is None else _places_by_id(places, row.ids, by_impression[row.id])
                shown[experiment, row.id] = Shown(
                    row.time, row.teams_by_index, places, by_id, bool(row.is_reused)
                )
    return shown


def _places_by_id(places: Sequence[int], ids: str, wanted: set[str]) -> dict[str, list[int]]:
    """Return the indices of the shown titles with each of the wanted ids. ids: JSON, of all titles."""
    by_id: defaultdict[str, list[int]] = defaultdict(list)
    if wanted:
        of_titles = orjson.loads(ids)
        for place in places:
            if of_titles[place] in wanted:
                by_id[of_titles[place]].append(place)
    return dict(by_id)


def _early(db: Connection, keys: Collection[ImpressionKey]) -> list[SentClick]:
    """Return the early clicks of some impressions."""
    columns = tuple_(early_clicks.c.experiment, early_clicks.c.impression)
    query = select(*_OF_EARLY).where(columns.in_(sorted(keys)))
    return list(starmap(SentClick, db.execute(query)))


def _move(
    db: Connection, early: Sequence[SentClick], shown: Mapping[ImpressionKey, Shown], now: float
) -> int:
    """Move early clicks to `clicks`. Return how many are on titles that were not shown; they are dropped."""
    if not early:
        return 0
    seen = {}
    for number, click in enumerate(early):
        title_list = shown[key_of(click)]
        index = title_list.index_of(click)
        if index is not None:
            seen[number] = _click(click, index, title_list, now)
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
    db: Connection,
    early: Mapping[int, SentClick],
    known: set[tuple[object, ...]],
    now: float,
    *,
    is_uncertain: bool = False,
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
    more = {"received": now, "is_uncertain": 1 if is_uncertain else None}
    rows = [values_of(early[first[key]]) | more for key in sorted(first)]
    statement = tables.insert_new(db, early_clicks).returning(*early_clicks.primary_key)
    return {first[tuple(row)] for row in db.execute(statement, rows)}


def _not_shown(click: SentClick, shown: Shown, name: str) -> str:
    """Say that a list did not show the clicked title. name: the list's, as the click has it."""
    if shown.is_reused:
        return f"several lists were shown to the unit as {name!r}; send each list's request with its own id"
    if click.index is not None:
        what = f"index {click.index}"
    elif alike := shown.with_id(click):
        return (
            f"object_id {click.object_id!r} is the id of {len(alike)} titles of impression "
            f"{name!r}; position.ordinal says which of them, and must be the rank of one"
        )
    elif alike is not None:
        what = f"object_id {click.object_id!r}"
    elif click.rank is not None:
        what = f"rank {click.rank}"
    else:
        return f"the request of impression {name!r} sent no ids, so the event needs an ordinal"
    return f"{what} was not shown in impression {name!r}, which has {len(shown.places)} titles"
