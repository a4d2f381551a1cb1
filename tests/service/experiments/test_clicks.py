"""Clicks are stored as they are sent, and joined with their lists when a report is made."""

from headroom.service.experiments import clicks, facts
from headroom.service.experiments.definition import INTERLEAVED, Metric
from headroom.service.experiments.events import Click, Exposure, Impression, OutcomeReceipt
from headroom.service.experiments.measure import read_facts
from headroom.service.experiments.outcomes import record
from headroom.service.experiments.preference import unit_values
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import Store
from tests.service.experiments.making import experiment, send

CLICK = Metric(name="click", window_hours=1.0)
ORDER = experiment(name="order", kind="interleave", metrics=[CLICK])
AB = experiment(name="ab", salt="ab")


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


def joined(store: Store) -> tuple[list[float], dict[str, int]]:
    """The value of each unit by its clicks, and the clicks that say nothing."""
    with store.read_all() as db:
        seen = read_facts(db, Experiment(ORDER, started=0.0)).seen
    assert seen is not None
    return list(unit_values(seen.clicks["click"])), dict(seen.unmatched)


def counts(receipt: OutcomeReceipt) -> tuple[int, int, int]:
    return receipt.accepted, receipt.duplicates, receipt.unknown


def test_the_receipt_says_what_is_known_to_be_wrong_and_the_report_counts_it(store: Store) -> None:
    store.add(exposed("u"))
    store.add([shown("a"), shown("twice"), shown("twice", teams="tc-s")])
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
    assert joined(store) == ([-1.0], {"index": 1, "unit": 1, "impression": 2})
    again = send(store, sent[9:], [ORDER, AB])
    assert (counts(again), again.duplicate_ids) == ((0, 1, 1), ["c10"])


def test_a_click_that_names_no_experiment_finds_its_list(store: Store) -> None:
    """As an event of User Behavior Insights does."""
    other = experiment(name="other", kind="interleave", salt="o", metrics=[CLICK])
    store.add(exposed("u"))
    store.add([shown("a", query_id="q"), shown("x", experiment="other", unit="w", query_id="q")])
    sent = [
        click(0, "q", experiment="", rank=2),
        click(1, "q", experiment="", unit="w", rank=1),
        click(2, "elsewhere", experiment="", rank=1),
        click(3, "a", experiment="", unit="w", rank=1),
        click(6, "x", experiment="", rank=1),  # another unit's, of the other experiment
    ]
    receipt = send(store, sent, [ORDER, other])
    assert counts(receipt) == (3, 0, 2)
    assert [row.reason for row in receipt.unknown_outcomes] == ["unit", "unit"]
    assert joined(store) == ([-1.0], {"impression": 1, "unit": 1})
    refused = send(store, [click(4, "q", experiment="", rank=1, metric="view")], [ORDER, other])
    assert refused.unknown_outcomes[0].reason == "metric"
    nobody = send(store, [click(5, "q", experiment="", rank=1)], [AB])
    assert nobody.unknown_outcomes[0].reason == "experiment"


def test_clicks_on_no_shown_title_are_counted_once_when_they_come(store: Store) -> None:
    store.add([shown("a")])
    sent = [click(0, "a", index=2), click(1, "never", index=0), click(2, "a", index=0)]
    assert record(store, sent, [ORDER])[1] == {"index": 1, "impression": 1}
    assert record(store, sent, [ORDER])[1] == {}


def test_a_deletion_takes_an_experiments_lists_and_their_clicks_and_nobody_elses(store: Store) -> None:
    lists = [shown(name, experiment=name, query_id="both") for name in ("order", "other")]
    store.add([shown("a"), shown("x", experiment="other"), *lists])
    sent = [
        click(0, "a", index=0),
        click(1, "a", experiment="", index=0),
        click(2, "x", experiment="", index=0),
        click(3, "both", experiment="", index=0),
    ]
    send(store, sent, [ORDER, experiment(name="other", kind="interleave", salt="o")])
    for name, stay in (("order", (["c2", "c3"], ["other", "x"])), ("other", ([], []))):
        with store.write_facts() as db:
            assert not facts.delete_some(db, name)
        with store.read() as db:
            tables = [db.execute(table.select()) for table in (clicks.clicks, clicks.impressions)]
            assert tuple([row.id for row in rows] for rows in tables) == stay
