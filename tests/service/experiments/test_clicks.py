"""Clicks are stored as they are sent, and joined with their lists when a report is made."""

import math
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headroom.service.experiments import clicks
from headroom.service.experiments.definition import INTERLEAVED, Metric
from headroom.service.experiments.events import Click, Exposure, Impression, OutcomeReceipt
from headroom.service.experiments.outcomes import WAIT_SECONDS, Unmatched, count_unmatched, record
from headroom.service.experiments.store import Store
from tests.service.experiments.making import experiment, send

CLICK = Metric(name="click", window_hours=1.0)
BUY = Metric(name="buy")
ORDER = experiment(name="order", kind="interleave", metrics=[CLICK, BUY])
AB = experiment(name="ab", salt="ab")
HOUR = 3600.0


def shown(
    list_id: str, unit: str = "u", teams: str = "ct-s", places: tuple[int, ...] = (1, 0, 3), **more: object
) -> Impression:
    fields: dict[str, object] = {"experiment": "order", "time": 100.0, "config_version": "v"}
    return Impression(id=list_id, unit=unit, teams_by_index=teams, places=places, **(fields | more))  # type: ignore[arg-type]


def click(number: int, list_id: str, unit: str = "u", **more: object) -> Click:
    fields: dict[str, object] = {"experiment": "order", "metric": "click", "value": 1.0, "time": 200.0}
    return Click(id=f"c{number}", unit=unit, list_id=list_id, **(fields | more))  # type: ignore[arg-type]


def exposed(*units: str) -> list[Exposure]:
    return [Exposure("order", unit, INTERLEAVED, 7, 50.0, "v") for unit in units]


def joined(
    store: Store, metric: Metric = CLICK, end: float = math.inf
) -> tuple[clicks.ClickSums, Counter[str]]:
    """What the clicks of a metric say, and those that say nothing."""
    with store.read_all() as db:
        by_metric, unmatched = clicks.read_credits(db, ORDER)
        unmatched += clicks.unmatched(db, ORDER, started=0.0)
        lists = clicks.count_lists(db, ORDER.name, end)
        return clicks.tally(lists, by_metric[metric.name], metric, end), unmatched


def counts(receipt: OutcomeReceipt) -> tuple[int, int, int]:
    return receipt.accepted, receipt.duplicates, receipt.unknown


def test_a_click_counts_whether_it_comes_before_or_after_its_list(store: Store) -> None:
    store.add_exposures(exposed("u", "v"))
    sent = [click(0, "a", index=1), click(1, "q", unit="v", rank=2)]
    assert counts(send(store, sent, [ORDER])) == (2, 0, 0)
    assert joined(store)[0].units == 0
    store.add_impressions([shown("a"), shown("b", unit="v", query_id="q")])
    tally, unmatched = joined(store)
    assert (tally.units, tally.wins, tally.losses, tally.impressions, tally.viewers) == (2, 1, 1, 2, 2)
    assert unmatched == {}


@pytest.mark.parametrize(
    ("what", "index"),
    [
        ({"index": 0}, 0),
        ({"rank": 1}, 1),
        ({"rank": 3}, 3),
        ({"object_id": "sku-0"}, 0),
        ({"object_id": "twice", "rank": 1}, 1),
        ({"object_id": "sku-0", "rank": 1}, 0),  # the id decides
        ({"index": 2}, None),  # not shown
        ({"index": 9}, None),
        ({"rank": 4}, None),
        ({"object_id": "twice"}, None),
        ({"object_id": "none"}, None),
    ],
)
def test_what_was_clicked_follows_from_index_id_and_rank(what: dict[str, object], index: int | None) -> None:
    title_list = clicks.Shown("ct-s", "[1, 0, 3]", '["sku-0", "twice", "sku-2", "twice"]')
    fields = {"index": None, "rank": None, "object_id": None} | what
    assert title_list.index_of(**fields) == index  # type: ignore[arg-type]
    without_ids = clicks.Shown("ct-s", "[1, 0, 3]")
    expected = (
        None
        if "rank" not in what and "index" not in what
        else without_ids.index_of(
            what.get("index"),
            what.get("rank"),
            None,  # type: ignore[arg-type]
        )
    )
    assert without_ids.index_of(**fields) == expected  # type: ignore[arg-type]


def test_the_receipt_says_what_is_known_to_be_wrong_and_the_report_counts_it(store: Store) -> None:
    store.add_exposures(exposed("u"))
    store.add_impressions([shown("a"), shown("twice"), shown("twice", teams="tc-s")])
    sent = [
        click(0, "a", index=2),
        click(1, "a", unit="other", index=0),
        click(2, "nowhere", index=0),
        click(3, "twice", index=0),
        click(4, "", index=0),
        click(5, "a"),
        click(6, "a", index=0, metric="clik"),
        click(7, "a", index=0, value=0.0),
        click(8, "a", index=0, experiment="ab"),
        click(9, "a", index=0, experiment="nobody"),
        click(10, "a", index=0),
    ]
    receipt = send(store, sent, [ORDER, AB])
    assert {row.index: row.reason for row in receipt.unknown_outcomes} == {
        0: "index",
        1: "unit",
        3: "index",
        4: "impression",
        5: "index",
        6: "metric",
        7: "value",
        8: "impression",
        9: "experiment",
    }
    assert receipt.accepted == 2
    assert joined(store)[1] == {"index": 1, "unit": 1, "impression": 2}
    assert joined(store)[0].losses == 1
    again = send(store, sent[9:], [ORDER, AB])
    assert (counts(again), again.duplicate_ids) == ((0, 1, 1), ["c10"])


def test_a_click_that_names_no_experiment_finds_its_list(store: Store) -> None:
    """As an event of User Behavior Insights does."""
    other = experiment(name="other", kind="interleave", salt="o", metrics=[CLICK])
    store.add_exposures(exposed("u"))
    store.add_impressions([shown("a", query_id="q"), shown("x", experiment="other", unit="w", query_id="q")])
    sent = [
        click(0, "q", experiment="", rank=2),
        click(1, "q", experiment="", unit="w", rank=1),
        click(2, "elsewhere", experiment="", rank=1),
        click(3, "a", experiment="", unit="w", rank=1),
    ]
    receipt = send(store, sent, [ORDER, other])
    assert (counts(receipt), receipt.unknown_outcomes[0].reason) == ((3, 0, 1), "unit")
    tally, unmatched = joined(store)
    assert tally.losses == tally.units == 1
    assert unmatched == {"impression": 1, "unit": 1}
    refused = send(store, [click(4, "q", experiment="", rank=1, metric="view")], [ORDER, other])
    assert refused.unknown_outcomes[0].reason == "metric"
    nobody = send(store, [click(5, "q", experiment="", rank=1)], [AB])
    assert nobody.unknown_outcomes[0].reason == "experiment"


def test_clicks_whose_list_never_comes_are_counted_after_a_minute(store: Store) -> None:
    store.add_impressions([shown("a")])
    recorded = record(
        store, [click(0, "a", index=2), click(1, "late", index=0), click(2, "never", index=0)], [ORDER]
    )
    assert recorded.unmatched == {"index": 1}
    waiting = Unmatched()
    waiting.add(recorded.listless, now=0.0)
    assert waiting.due(WAIT_SECONDS - 1) == []
    store.add_impressions([shown("late")])
    due = waiting.due(WAIT_SECONDS)
    assert count_unmatched(store, due) == {"impression": 1}
    assert waiting.due(WAIT_SECONDS + 9) == []


def by_the_page(
    lists: list[Impression], sent: list[Click], end: float
) -> tuple[tuple[int, ...], Counter[str]]:
    """Units, wins, losses and lists by docs/experiments-data.md, and the unmatched clicks, read slowly."""
    credit: defaultdict[str, dict[tuple[str, int], tuple[str, float]]] = defaultdict(dict)
    unmatched: Counter[str] = Counter()
    for one in sent:
        named = [each for each in lists if one.list_id in (each.id, each.query_id)]
        mine = [each for each in named if each.unit == one.unit]
        contents = {(each.teams_by_index, each.places, each.ids) for each in mine}
        if len(contents) != 1:
            unmatched["unit" if named and not mine else "impression"] += 1
            continue
        first = min(each.time for each in mine)
        title = one.index if one.index is not None else dict(enumerate(mine[0].places, 1)).get(one.rank or 0)
        if title is None or title >= len(mine[0].teams_by_index) or mine[0].teams_by_index[title] == "-":
            unmatched["index"] += 1
        elif first < end and one.time < first + HOUR and mine[0].teams_by_index[title] in "ct":
            credit[one.unit][mine[0].id, title] = (mine[0].teams_by_index[title], first)
    values = [sum(1 if team == "t" else -1 for team, _ in titles.values()) for titles in credit.values()]
    firsts: dict[tuple[object, ...], float] = {}
    for each in lists:
        key = (each.id, each.teams_by_index, each.places, each.ids)
        firsts[key] = min(each.time, firsts.get(key, math.inf))
    counted = sum(first < end for first in firsts.values())
    numbers = (len(values), sum(value > 0 for value in values), sum(value < 0 for value in values), counted)
    return numbers, unmatched


def test_no_order_of_arrival_changes_what_counts_and_that_is_what_the_page_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    units = [f"u{number}" for number in range(6)]
    lists = []
    for _ in range(40):
        unit = units[rng.integers(6)]
        name = int(rng.integers(12))
        own = f"q{name}" if rng.random() < 0.5 else None
        teams = ("ct-s", "tc-s", "ssss")[rng.integers(3) if rng.random() < 0.2 else name % 3]
        lists.append(shown(f"{unit}-{name}", unit, teams, time=float(rng.integers(100, 2000)), query_id=own))
    sent = []
    for number in range(300):
        unit = units[rng.integers(6)]
        name = f"{unit}-{rng.integers(14)}" if rng.random() < 0.6 else f"q{rng.integers(14)}"
        what = {"index": int(rng.integers(6))} if rng.random() < 0.5 else {"rank": int(rng.integers(1, 6))}
        sent.append(
            click(
                number,
                name,
                units[rng.integers(6)] if rng.random() < 0.2 else unit,
                time=float(rng.integers(100, 6000)),
                **what,
            )
        )
    end = 1500.0
    expected, unmatched = by_the_page(lists, sent, end)
    assert expected[0] > 3
    assert set(unmatched) == {"impression", "unit", "index"}
    for order in range(4):
        with closing(Store(f"sqlite:///{tmp_path / f'{order}.db'}")) as store:
            facts: list[Impression | Click] = [*lists, *sent, *lists[:5]]
            for each in rng.permutation(np.array(facts, dtype=object)):
                if isinstance(each, Impression):
                    store.add_impressions([each])
                else:
                    send(store, [each], [ORDER])
            store.add_exposures(exposed(*units))
            tally, found = joined(store, end=end)
        assert (tally.units, tally.wins, tally.losses, tally.impressions) == expected
        assert found == unmatched


def test_a_title_counts_once_however_it_is_named_and_once_per_metric(store: Store) -> None:
    store.add_exposures(exposed("u"))
    store.add_impressions([shown("a", query_id="q")])
    same = [click(0, "a", index=1), click(1, "q", rank=1), click(2, "a", rank=1, experiment="")]
    other = [click(3, "a", index=0), click(4, "a", index=0, metric="buy")]
    assert counts(send(store, [*same, *other], [ORDER])) == (5, 0, 0)
    tally, _ = joined(store)
    assert (tally.units, tally.ties) == (1, 1)
    assert joined(store, BUY)[0].losses == 1


def test_a_deletion_takes_an_experiments_lists_and_their_clicks_and_nobody_elses(store: Store) -> None:
    store.add_impressions([shown("a"), shown("x", experiment="other")])
    sent = [
        click(0, "a", index=0),
        click(1, "a", experiment="", index=0),
        click(2, "x", experiment="", index=0),
    ]
    send(store, sent, [ORDER, experiment(name="other", kind="interleave", salt="o")])
    while store.delete_facts("order"):
        pass
    with store.read() as db:
        assert [row.id for row in db.execute(clicks.clicks.select())] == ["c2"]
        assert [row.id for row in db.execute(clicks.impressions.select())] == ["x"]
