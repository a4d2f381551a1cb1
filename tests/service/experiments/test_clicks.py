"""Clicks on interleaved lists: each counts once, for the arm whose title it was, or not at all."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.buckets import bucket
from headroom.service.experiments.clicks import MAX_WAITING, UNCERTAIN_WAIT_SECONDS, WAIT_SECONDS
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig, Metric
from headroom.service.experiments.events import (
    Action,
    Exposure,
    Impression,
    Outcome,
    OutcomeReceipt,
    SentClick,
)
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.preference import Tally
from headroom.service.experiments.retention import DAY_SECONDS
from headroom.service.experiments.state import end_of, identity, withdrawals
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, early_clicks, impressions, outcomes
from headroom.service.experiments.upkeep import Upkeep
from headroom.service.observe.metrics import Metrics
from tests.service.experiments.making import KEY, experiment, use_known_key

CLICK = Metric(name="click")
ORDER = experiment(name="order", kind="interleave", metrics=[{"name": "click"}, {"name": "buy"}])
NOW = 1_000.0


def shown(
    unit: str,
    teams: str = "ct-s",
    places: Sequence[int] = (1, 0, 3),
    *,
    time: float = 100.0,
    ids: tuple[str, ...] | None = None,
    query_id: str | None = None,
) -> Impression:
    """A list that was shown to a unit; by default treatment's title 1, control's 0, and the shared 3."""
    return Impression(
        experiment="order",
        id=impression_id(KEY, "order", unit, query_id),
        unit=unit,
        time=time,
        config_version="v",
        teams_by_index=teams,
        places=tuple(places),
        ids=ids,
        query_id=query_id,
    )


@pytest.fixture(autouse=True)
def key(request: pytest.FixtureRequest) -> None:
    """All these tests make their lists with KEY."""
    with closing(Store(request.getfixturevalue("url"))) as store:
        use_known_key(store)


def exposed(*units: str, time: float = 100.0, bucket: int = 7) -> list[Exposure]:
    return [Exposure("order", unit, "interleaved", bucket, time, "v") for unit in units]


def click(on: Impression, index: int | None = 0, *, name: str = "", **more: Any) -> SentClick:
    sent = SentClick(
        experiment="order",
        id=name or f"{on.id} {index}",
        unit=on.unit,
        metric="click",
        impression=on.id,
        value=1.0,
        time=on.time + 5,
        index=index,
    )
    return replace(sent, **more)


def record(store: Store, *rows: SentClick | Outcome, now: float = NOW) -> OutcomeReceipt:
    return store.record_outcomes(rows, [ORDER, experiment()], now)


def numbers(receipt: OutcomeReceipt) -> tuple[int, int, int]:
    return receipt.accepted, receipt.duplicates, receipt.unknown


def preferred(store: Store, metric: Metric = CLICK, **more: Any) -> Tally:
    return store.preferences(ORDER, metric, end_of(more.pop("withdrawals", ())), NOW, **more)


def rows_of(store: Store, table: Any) -> int:
    with store.read() as db:
        return int(db.scalar(select(func.count()).select_from(table)) or 0)


def test_a_title_counts_once_for_its_arm_whatever_is_sent_again(store: Store) -> None:
    a = shown("a")
    b = shown("b")
    store.add_exposures(exposed("a", "b"))
    assert store.add_impressions([a, b]) == 2
    assert store.add_impressions([a]) == 0
    first = record(store, click(a, 1), click(a, 1, name="again"), click(b, 0), click(b, 3))
    assert numbers(first) == (3, 1, 0)
    assert first.duplicate_ids == ["again"]
    replayed = record(store, click(a, 1), click(b, 1, name=f"{b.id} 0"), click(b, 0, time=900.0, name="x"))
    assert numbers(replayed) == (0, 3, 0)
    assert preferred(store) == Tally(
        units=2, total=0.0, squares=2.0, wins=1, losses=1, ties=0, impressions=2, differing=2, viewers=2
    )
    # Another metric counts on its own.
    assert numbers(record(store, click(b, 1, metric="buy", name="buy"))) == (1, 0, 0)
    assert preferred(store, Metric(name="buy")).wins == 1


def test_a_unit_is_one_sample_however_often_it_clicks(store: Store) -> None:
    lists = [shown("a") for _ in range(3)] + [shown("b"), shown("none"), shown("shared")]
    same = shown("b", "sss", (0, 1, 2))
    store.add_exposures(exposed("a", "b", "none", "shared"))
    store.add_impressions([*lists, same])
    sent = [click(each, 1) for each in lists[:3]] + [click(lists[0], 0)]  # a: 3 of the treatment's, 1
    sent += [click(lists[3], 0), click(lists[3], 1), click(same, 1)]  # b: a tie, and a shared title
    sent += [click(lists[5], 3)]  # a shared title alone gives no credit
    assert numbers(record(store, *sent)) == (8, 0, 0)
    assert preferred(store) == Tally(
        units=2, total=0.5, squares=0.25, wins=1, losses=0, ties=1, impressions=7, differing=6, viewers=4
    )


def test_what_is_wrong_is_told_and_changes_nothing(store: Store) -> None:
    a = shown("a", ids=("w", "x", "y", "z"))
    b = shown("b")
    store.add_exposures(exposed("a", "b"))
    store.add_impressions([a, b])
    forged = a.id[:-1] + ("0" if a.id[-1] != "0" else "1")
    ubi = click(a, None, experiment=None)
    cases: list[tuple[SentClick | Outcome, str, str]] = [
        (click(a, impression=forged, name="1"), "impression", f"there is no impression '{forged}'"),
        (click(a, unit="b", name="2"), "unit", "is not one of the unit 'b'"),
        (click(a, 2, name="3"), "index", f"index 2 was not shown in impression '{a.id}', which has 3 titles"),
        (click(a, 4, name="4"), "index", "index 4 was not shown"),
        (click(a, metric="view", name="5"), "metric", "'order' has no metric 'view'; it has buy, click"),
        (click(a, experiment="prune20", name="6"), "impression", "'prune20' does not interleave"),
        (click(a, experiment="gone", name="7"), "experiment", "there is no experiment 'gone'"),
        (click(a, value=0.0, name="8"), "value", "value 0 is no click"),
        (Outcome("order", "9", "a", "click", 1.0, 105.0), "impression", "'order' interleaves: send"),
        (replace(ubi, rank=4), "index", "rank 4 was not shown"),
        (replace(ubi, rank=0), "index", "rank 0 was not shown"),
        (replace(ubi, object_id="y", rank=1), "index", "object_id 'y' was not shown"),
        (replace(ubi, object_id="other"), "index", "object_id 'other' was not shown"),
        (replace(ubi, impression=b.id, unit="b", object_id="x"), "index", "sent no ids"),
        (ubi, "index", "neither position.ordinal nor object.object_id"),
        (replace(ubi, unit="", rank=1), "unit", "client_id is missing"),
    ]
    receipt = record(store, *(case[0] for case in cases))
    assert numbers(receipt) == (0, 0, len(cases))
    assert [row.index for row in receipt.unknown_outcomes] == list(range(len(cases)))
    for row, (_, reason, message) in zip(receipt.unknown_outcomes, cases, strict=True):
        assert (row.reason, message in row.message) == (reason, True), row
    assert [rows_of(store, table) for table in (clicks, outcomes)] == [0, 0]


def test_ranks_and_ids_name_the_same_titles_as_indices(store: Store) -> None:
    a = shown("a", ids=("w", "x", "y", "z"))
    store.add_exposures(exposed("a"))
    store.add_impressions([a])
    by_rank = click(a, None, experiment=None, rank=1, name="r")
    by_object = click(a, None, experiment=None, rank=17, object_id="x", name="o")  # the rank in another list
    assert numbers(record(store, by_rank, by_object, click(a, 1))) == (1, 2, 0)
    assert preferred(store).wins == 1


def test_an_id_of_two_titles_never_credits_the_wrong_arm(store: Store) -> None:
    """Treatment's title 1 stands first, control's 0 second, and both have the id "x"."""
    a = shown("a", ids=("x", "x", "y", "z"))
    store.add_exposures(exposed("a"))
    early = [
        click(a, None, experiment=None, rank=2, object_id="x", name="second"),
        click(a, None, experiment=None, rank=3, object_id="x", name="neither"),
    ]
    assert numbers(record(store, *early)) == (2, 0, 0)
    store.add_impressions([a])
    ambiguous = click(a, None, experiment=None, object_id="x", name="which")
    elsewhere = click(a, None, experiment=None, rank=4, object_id="x", name="elsewhere")
    receipt = record(store, ambiguous, elsewhere)
    assert numbers(receipt) == (0, 0, 2)
    for row in receipt.unknown_outcomes:
        assert (row.reason, "is the id of 2 titles" in row.message) == ("index", True), row
    found = preferred(store)
    assert (found.wins, found.losses, rows_of(store, clicks)) == (0, 1, 1)
    assert numbers(record(store, replace(ambiguous, rank=1, id="first"))) == (1, 0, 0)
    found = preferred(store)
    assert (found.wins, found.losses, found.ties, rows_of(store, clicks)) == (0, 0, 1, 2)


def test_a_wrong_clock_neither_keeps_a_click_for_ever_nor_deletes_it_at_once(store: Store) -> None:
    a = shown("a", time=NOW - 1000)
    b = shown("b", time=NOW - 1000)
    store.add_impressions([a])
    sent = [
        click(on, index, time=time, name=f"{on.unit}{index}")
        for on in (a, b)  # b is not written yet
        for index, time in ((0, 0.0), (1, 9e9), (3, NOW - 10))
    ]
    assert numbers(record(store, *sent)) == (6, 0, 0)
    store.add_impressions([b])
    store.settle_early_clicks(NOW)
    with store.read() as db:
        times = dict(map(tuple, db.execute(select(clicks.c.id, clicks.c.time))))
    for unit in "ab":
        assert [times[f"{unit}{index}"] for index in (0, 1, 3)] == [NOW - 1000, NOW, NOW - 10]
    assert not store.delete_before(NOW - 1000, [])
    assert rows_of(store, clicks) == 6
    assert not store.delete_before(NOW + 1, [])
    assert rows_of(store, clicks) == 0


def test_a_rank_below_the_first_is_told_before_the_impression_is_written(store: Store) -> None:
    a = shown("a")
    receipt = record(store, click(a, None, rank=0), click(a, None, rank=-3, name="b"))
    assert [row.reason for row in receipt.unknown_outcomes] == ["index", "index"]
    assert "ranks count from 1" in receipt.unknown_outcomes[0].message
    assert rows_of(store, early_clicks) == 0


def test_a_click_before_its_impression_is_written_counts_once_it_is(store: Store) -> None:
    a = shown("a", ids=("w", "x", "y", "z"))
    b = shown("b")
    sent = [
        click(a, 1),
        click(b, None, experiment=None, rank=1, name="rank"),
        click(b, 2, name="not shown"),
        click(b, metric="view"),
    ]
    lost: list[int] = []
    store.on_lost_clicks = lost.append
    assert numbers(record(store, *sent)) == (3, 0, 1)
    assert numbers(record(store, *sent, click(a, 1, name="again"))) == (0, 4, 1)
    assert preferred(store).units == 0
    store.add_exposures(exposed("a", "b"))
    store.add_impressions([a])
    # Sent again when the list is there: the early one has counted.
    assert numbers(record(store, click(a, 1, name="third"), click(a, 0))) == (1, 1, 0)
    store.add_impressions([b])
    assert preferred(store) == Tally(
        units=2, total=1.0, squares=1.0, wins=1, losses=0, ties=1, impressions=2, differing=2, viewers=2
    )
    assert rows_of(store, early_clicks) == 0
    assert lost == [1]


def test_a_click_whose_impression_never_comes_is_dropped_and_counted(store: Store) -> None:
    lost: list[int] = []
    store.on_lost_clicks = lost.append
    record(store, *(click(shown(f"u{number}")) for number in range(250)))
    store.settle_early_clicks(NOW + WAIT_SECONDS - 1)
    assert (rows_of(store, early_clicks), lost) == (250, [])
    store.settle_early_clicks(NOW + WAIT_SECONDS + 1)
    assert (rows_of(store, early_clicks), sum(lost)) == (0, 250)


def test_only_so_many_clicks_wait_for_one_impression(store: Store) -> None:
    """They cannot be checked yet: anybody who was ever shown a list could fill the database."""
    a = shown("a")
    receipt = record(store, *(click(a, index) for index in range(MAX_WAITING + 50)))
    assert numbers(receipt) == (MAX_WAITING, 0, 50)
    more = record(store, click(a, 10_000), click(a, 0))
    assert "is not stored, and 200 clicks wait" in more.unknown_outcomes[0].message
    assert rows_of(store, early_clicks) == MAX_WAITING


def test_late_clicks_and_lists_after_the_end_do_not_count(store: Store) -> None:
    config = ExperimentConfig.model_validate(
        ORDER.model_dump() | {"metrics": [{"name": "click", "window_hours": 1}]}
    )
    (hour,) = config.metrics
    a = shown("a")
    b = shown("b", time=500.0)
    c = shown("c", time=450.0)
    store.add_exposures([*exposed("a", "b"), *exposed("c", bucket=9_000)])
    store.add_impressions([a, b, c])
    record(store, click(a, 1, time=100.0 + 3599), click(a, 0, time=100.0 + 3600), now=5000.0)
    record(store, click(b, 1), click(c, 1))
    assert preferred(store, hour).wins == 3
    assert preferred(store).total == 2.0  # without a window, the late click makes a's a tie
    log = [
        Action("order", "start", 50.0, "config", detail=identity(config)),
        Action("order", "ramp", 400.0, "boss", traffic=0.5),
        Action("order", "stop", 480.0, "boss"),
    ]
    # b's list was shown after the end. c's bucket left with the ramp, but c saw a list of both arms.
    ended = preferred(store, hour, withdrawals=withdrawals(config, log))
    assert (ended.units, ended.wins, ended.impressions) == (2, 2, 2)
    ramped = preferred(store, hour, withdrawals=withdrawals(config, log[:2]))
    assert (ramped.units, ramped.impressions) == (3, 3)
    early_look = preferred(store, hour, until=460.0)
    assert (early_look.units, early_look.impressions) == (1, 2)
    rolled_back = [log[0], Action("order", "rollback", 440.0, "guardrail", arm="pruned")]
    assert preferred(store, hour, withdrawals=withdrawals(config, rolled_back)).impressions == 1


def test_lists_after_a_pause_count(store: Store) -> None:
    """`ramp --traffic 0` is a pause. Each unit that had been exposed before it never counted again."""
    log = [
        Action("order", "start", 50.0, "config", detail=identity(ORDER)),
        Action("order", "ramp", 200.0, "boss", traffic=0.0),
        Action("order", "ramp", 300.0, "boss", traffic=1.0),
    ]
    store.add_exposures(exposed("a", "b"))
    lists = [shown("a", time=400.0), shown("b", time=410.0), shown("b", time=500.0)]
    store.add_impressions(lists)
    record(store, *(click(each, 1) for each in lists))
    found = preferred(store, withdrawals=withdrawals(ORDER, log))
    assert (found.impressions, found.units, found.wins) == (3, 2, 2)


def test_a_click_by_a_query_id_counts_after_the_slots_have_changed(store: Store) -> None:
    a = shown("a", query_id="q")
    store.add_exposures(exposed("a"))
    store.add_impressions([a])
    slot = bucket(LAYER_SALT, "a")
    other_slots = (slot + 1, 10_000) if slot < 5_000 else (0, slot)
    moved = ORDER.model_copy(update={"slots": other_slots})
    assert numbers(store.record_outcomes([by_query("a", "q")], [moved], NOW)) == (1, 0, 0)
    assert preferred(store).wins == 1
    # Nobody waits for a list that the unit cannot get any more.
    assert store.record_outcomes([by_query("a", "never")], [moved], NOW).unknown == 1
    assert rows_of(store, early_clicks) == 0


def test_what_is_old_is_deleted_but_not_of_a_running_experiment(store: Store) -> None:
    clock = 100 * DAY_SECONDS
    old = clock - 31 * DAY_SECONDS
    recent = clock - 29 * DAY_SECONDS
    running = experiment(name="running")
    store.add_exposures(exposed("a"))
    lists = [shown("a", time=old) for _ in range(3)] + [shown("a", time=recent)]
    store.add_impressions(lists)
    # A list of an experiment that is no longer in the config, and has no log.
    gone = impression_id(KEY, "gone", "a")
    store.add_impressions([replace(lists[0], experiment="gone", id=gone)])
    record(store, *(click(each, 1) for each in lists))
    results = [
        Outcome(name, f"{name} {time}", "a", "click", 1.0, time)
        for name in ("running", "prune20")
        for time in (old, recent)
    ]
    store.record_outcomes(results, [running, experiment()])
    ledger = Ledger(store, Metrics(), clock=lambda: clock, monotonic=lambda: 0.0)
    ledger.apply((running, ORDER), "v")
    Upkeep(ledger, outcome_days=30).delete()
    assert [rows_of(store, table) for table in (impressions, clicks, outcomes)] == [4, 4, 3]
    # A click on a list that is deleted waits in vain.
    ledger.store.record_action(Action("order", "stop", old, "boss"))
    clock += 31 * DAY_SECONDS
    ledger.refresh()
    Upkeep(ledger, outcome_days=30).delete()
    assert [rows_of(store, table) for table in (impressions, clicks, outcomes)] == [0, 0, 2]
    assert numbers(record(store, click(lists[0], 1, name="late"), now=clock)) == (1, 0, 0)
    store.settle_early_clicks(clock + WAIT_SECONDS + 1)
    assert rows_of(store, clicks) == 0


def test_deletion_goes_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headroom.service.experiments.store.DELETED_AT_ONCE", 20)
    store.add_impressions([shown("a", time=10.0) for _ in range(50)])
    assert [store.delete_before(11.0, ()) for _ in range(3)] == [True, True, False]
    assert rows_of(store, impressions) == 0


def until_done(call: Callable[[], object]) -> None:
    """Repeat a call, as callers do at a 503, while the database is too busy for it."""
    for _ in range(20):
        try:
            call()
        except DatabaseUnavailable:
            continue
        return
    raise AssertionError("the database was busy 20 times in a row")


def test_callers_at_once_and_in_any_order_count_as_one_in_order(url: str) -> None:
    """Credit is what a plain count in Python gives, however clicks and lists race."""
    generator = random.Random(7)
    units = [f"u{number}" for number in range(40)]
    lists = [shown(unit, generator.choice(["ct-s", "tcs-", "ssss"]), (0, 1), time=10.0) for unit in units * 3]
    sent = [
        click(each, generator.randrange(2), name=f"{n}")
        for n, each in enumerate(generator.choices(lists, k=600))
    ]
    stores = [Store(url) for _ in range(4)]
    stores[0].add_exposures(exposed(*units, time=10.0))

    def replica(number: int) -> None:
        rows = list(sent)
        random.Random(number).shuffle(rows)
        store = stores[number]
        for start in range(0, 600, 75):
            until_done(lambda at=start: record(store, *rows[at : at + 75]))
            until_done(lambda at=start: store.add_impressions(lists[(number + at) % 4 :: 4]))
            until_done(lambda: store.settle_early_clicks(NOW))

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].add_impressions(lists)
    expected: defaultdict[str, list[int]] = defaultdict(list)
    for unit, team in {
        (each.unit, each.impression, each.index): next(
            shown_list.teams_by_index[each.index or 0]
            for shown_list in lists
            if shown_list.id == each.impression
        )
        for each in sent
    }.items():
        if team in "ct":
            expected[unit[0]].append(1 if team == "t" else -1)
    values = [sum(each) / len(each) for each in expected.values()]
    tally = preferred(stores[0])
    assert tally.units == len(values)
    assert tally.total == pytest.approx(sum(values))
    assert tally.squares == pytest.approx(sum(value**2 for value in values))
    assert rows_of(stores[0], early_clicks) == 0
    for each_store in stores:
        each_store.close()


def by_query(unit: str, query_id: str, index: int | None = 1, *, name: str = "", **more: Any) -> SentClick:
    """A click that names the caller's query id; the experiment is not named, as in an event."""
    click_id = name or f"{unit} {query_id} {index}"
    return SentClick(None, click_id, unit, "click", query_id, 1.0, 105.0, index, **more)


def test_clicks_may_name_the_callers_own_id_of_the_list(store: Store) -> None:
    a = shown("a", query_id="q-1")
    store.add_exposures(exposed("a", "b"))
    assert store.add_impressions([a, a]) == 1
    receipt = record(
        store,
        by_query("a", "q-1"),
        by_query("a", "q-1", 2),
        by_query("b", "q-1"),
        click(a, 1, name="by the impression"),
        by_query("a", "q-1", 1, name="again"),
    )
    assert numbers(receipt) == (1, 2, 2)
    # The message names what was sent.
    assert [(row.index, row.reason) for row in receipt.unknown_outcomes] == [(1, "index"), (2, "impression")]
    assert "index 2 was not shown in impression 'q-1'" in receipt.unknown_outcomes[0].message
    assert "there is no impression 'q-1' of the unit 'b'" in receipt.unknown_outcomes[1].message
    assert preferred(store).wins == 1


def test_the_same_query_id_of_two_units_is_two_lists(store: Store) -> None:
    """Nobody can credit, or replace, another unit's list by guessing its query id."""
    a = shown("a", query_id="q")
    b = shown("b", "tc-s", (0, 1, 3), query_id="q")
    assert a.id != b.id
    store.add_exposures(exposed("a", "b"))
    store.add_impressions([a, b])
    assert numbers(record(store, by_query("a", "q"), by_query("b", "q"))) == (2, 0, 0)
    found = preferred(store)
    assert (found.wins, found.losses) == (1, 1)


def test_a_click_by_a_query_id_before_its_list_is_unknown_and_counts_once_the_list_is_stored(
    store: Store,
) -> None:
    a = shown("a", query_id="q")
    lost: list[int] = []
    store.on_lost_clicks = lost.append
    early = record(
        store, by_query("a", "q"), by_query("a", "never"), by_query("a", "q", None, rank=2, name="r")
    )
    assert numbers(early) == (0, 0, 3)
    store.add_exposures(exposed("a"))
    store.add_impressions([a])
    found = preferred(store)
    assert (found.units, found.ties) == (1, 1)
    assert numbers(record(store, by_query("a", "q"))) == (0, 1, 0)
    # What was never accepted is not lost, and does not stay.
    store.settle_early_clicks(NOW + UNCERTAIN_WAIT_SECONDS + 1)
    assert (rows_of(store, early_clicks), lost) == (0, [])


def test_a_click_that_proves_its_list_lets_those_by_its_query_id_wait_as_long(store: Store) -> None:
    a = shown("a", query_id="q")
    record(store, by_query("a", "q"))
    assert numbers(record(store, click(a, 1, name="same title"), click(a, 0))) == (1, 1, 0)
    store.settle_early_clicks(NOW + UNCERTAIN_WAIT_SECONDS + 1)
    store.add_exposures(exposed("a"))
    store.add_impressions([a])
    assert preferred(store).ties == 1


def test_no_click_counts_once_two_lists_have_one_query_id(store: Store) -> None:
    """An ordinal would be that of a title of the other list, so of the wrong arm."""
    a = shown("a", query_id="q")
    store.add_exposures(exposed("a"))
    store.add_impressions([a, a])
    assert numbers(record(store, by_query("a", "q"))) == (1, 0, 0)
    assert store.add_impressions([replace(a, time=200.0)]) == 0  # a retry of the request: the same list
    assert numbers(record(store, by_query("a", "q", 3))) == (1, 0, 0)
    for other in ({"places": (0, 1, 3)}, {"ids": ("w", "x", "y", "z")}, {"teams_by_index": "tc-s"}):
        assert store.add_impressions([replace(a, **other)]) == 0  # type: ignore[arg-type]
        receipt = record(store, by_query("a", "q", 0), click(a, 0, name="x"))
        assert numbers(receipt) == (0, 0, 2)
        assert "several lists were shown to the unit as 'q'" in receipt.unknown_outcomes[0].message
    assert preferred(store).wins == 1


def test_no_click_counts_on_a_list_whose_impression_is_the_query_id_of_the_next(store: Store) -> None:
    """A shop that carries the impression on to page 2: clicks there counted for the titles of page 1."""
    first = shown("a")
    second = shown("a", "tc-s", (0, 1, 3), query_id=first.id)
    store.add_exposures(exposed("a"))
    store.add_impressions([first])
    store.add_impressions([second])
    receipt = record(store, by_query("a", first.id, None, rank=1), click(second, 1, name="x"))
    assert numbers(receipt) == (0, 0, 2)
    assert f"several lists were shown to the unit as '{first.id}'" in receipt.unknown_outcomes[0].message


def test_an_event_of_another_action_does_not_wait(store: Store) -> None:
    receipt = record(store, replace(by_query("a", "q"), metric="page_exit"))
    assert (receipt.unknown_outcomes[0].reason, rows_of(store, early_clicks)) == ("metric", 0)


def test_clicks_on_what_was_never_shown_fill_no_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headroom.service.experiments.clicks.MAX_EARLY", 150)
    monkeypatch.setattr("headroom.service.experiments.clicks.MAX_UNCERTAIN", 110)
    lost: list[int] = []
    store.on_lost_clicks = lost.append
    unseen = [by_query(f"u{number}", "q") for number in range(400)]
    assert record(store, *unseen).unknown == 400
    assert rows_of(store, early_clicks) == 200  # full after the second hundred
    # Those that prove their list have room of their own.
    receipt = record(store, *(click(shown(f"u{number}")) for number in range(400)))
    assert numbers(receipt) == (200, 0, 200)
    assert "150 clicks wait for lists that are not stored" in receipt.unknown_outcomes[0].message
    assert (rows_of(store, early_clicks), sum(lost)) == (400, 200)
    # A click on a list that is stored counts all the same.
    a = shown("a")
    store.add_impressions([a])
    assert numbers(record(store, click(a, 1))) == (1, 0, 0)
    store.settle_early_clicks(NOW + WAIT_SECONDS + 1)
    assert (rows_of(store, early_clicks), sum(lost)) == (0, 400)


def test_nobody_waits_for_lists_of_an_experiment_that_is_over(store: Store) -> None:
    receipt = store.record_outcomes([by_query("a", "q")], [ORDER], NOW, over=["order"])
    assert (receipt.unknown, rows_of(store, early_clicks)) == (1, 0)
