"""What an interleaving experiment says, from the lists and clicks in the database to the sentence."""

import numpy as np
import orjson
import pytest

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig
from headroom.service.experiments.events import Click, Exposure, Impression
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.log import Entry
from headroom.service.experiments.preference import deciding
from headroom.service.experiments.report import MetricPreference, Report
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import most_affected
from tests.service.experiments.making import experiment, logged, send

BEGAN = 1000.0
STEP = 60.0
TEAMS = "cts"
"""Who owns the three titles of each list."""


def config_of(**more: object) -> ExperimentConfig:
    metrics = [{"name": "click", "margin": 0.2}]
    return experiment(**{"kind": "interleave", "metrics": metrics, "planned_units": 300} | more)


def fill(store: Store, config: ExperimentConfig, clicked: list[str], *, teams: str = TEAMS) -> None:
    """Show a list to a unit each minute, which clicks the titles of these teams."""
    impressions = []
    clicks = []
    for number, teams_clicked in enumerate(clicked):
        unit = f"u{number}"
        time = BEGAN + STEP * number
        shown = impression_id(config.name, unit)
        impressions.append(Impression(config.name, shown, unit, time, "v", teams, tuple(range(len(teams)))))
        for team in teams_clicked:
            click_id = f"{unit}-{team}"
            clicks.append(
                Click(config.name, click_id, unit, "click", shown, 1.0, time + 5, index=TEAMS.index(team))
            )
    exposures = [
        Exposure(config.name, row.unit, INTERLEAVED, number, row.time, "v")
        for number, row in enumerate(impressions)
    ]
    store.add(exposures)
    store.add(impressions)
    if clicks:
        receipt = send(store, clicks, [config])
        assert receipt.accepted == len(clicks)


def report_of(store: Store, config: ExperimentConfig, *log: Entry, now: float = 1e6, **more: float) -> Report:
    return analyse(store, logged(config, *log, time=BEGAN - 1), now, {}, **more)


def units(treatment: int, control: int, both: int = 0, neither: int = 0, shared: int = 0) -> list[str]:
    """So many units that click the treatment's title, control's, both, none, and the shared one."""
    clicked = ["t"] * treatment + ["c"] * control + ["ct"] * both + [""] * neither + ["s"] * shared
    order = np.random.default_rng(3).permutation(len(clicked))
    return [clicked[index] for index in order]


@pytest.mark.parametrize(
    ("clicked", "recommendation", "decision", "text"),
    [
        (units(260, 140), "ship", "better", "pruned on click is better, by 0.1"),
        (units(390, 390, 20), "ship", "good_enough", "if at all; the margin is 0.2 of preference. 390 units"),
        (units(40, 260), "stop", "too_bad", "pruned on click is too bad: worse by 0.6"),
        (units(100, 200), "wait", "worse", "300 of 300 planned units have clicked a title of one arm: wait"),
        (units(20, 20, 5), "wait", "undecided", "45 of 300 planned units have clicked a title of one arm."),
        (
            units(5, 4, 0, 80, 40),
            "wait",
            "undecided",
            "too few clicks for an interval: only 9 units have clicked a title of one arm.",
        ),
    ],
)
def test_the_verdict_follows_from_whose_titles_the_units_clicked(
    file_store: Store, clicked: list[str], recommendation: str, decision: str, text: str
) -> None:
    config = config_of()
    fill(file_store, config, clicked)
    report = report_of(file_store, config)
    ((metric,),) = [arm.metrics for arm in report.arms]
    assert (report.recommendation, metric.decision) == (recommendation, decision)
    assert text in report.text
    assert report.exposures == {"interleaved": len(clicked)}
    assert not report.sample_ratio.alarm
    assert "no sample ratio to check" in report.sample_ratio.text
    found = metric.preference
    assert found is not None
    values = [("t" in one) - ("c" in one) for one in clicked if set(one) & set("ct")]
    assert found.estimate == pytest.approx(np.mean(values))
    assert found.units == metric.units == len(values)
    assert (found.wins, found.losses, found.ties) == (
        clicked.count("t"),
        clicked.count("c"),
        clicked.count("ct"),
    )
    assert (found.impressions, found.differing) == (len(clicked), len(clicked))
    if metric.low is not None:
        assert found.interval == (metric.low, metric.high)
        assert metric.low < np.mean(values) < metric.high  # type: ignore[operator]
    assert metric.relative is None
    assert not metric.margin_relative


def test_a_variant_that_never_changes_a_list_is_told_at_once(file_store: Store) -> None:
    config = config_of(metrics=[{"name": "click", "margin": 0.05}])
    fill(file_store, config, units(0, 0, neither=40, shared=20), teams="sss")
    report = report_of(file_store, config)
    assert report.recommendation == "ship"
    assert "pruned showed control's order in all 60 lists of 60 units" in report.text
    assert "at most 4.88 % of the units ever see another order; the margin is 0.05" in report.text
    top = deciding(report)
    assert top == MetricPreference(0.0, (-1.0, 1.0), 1.0, 0, 60, 0, 0, 0, 0, metric="click")
    few = config_of(metrics=[{"name": "click", "margin": 0.04}])
    assert report_of(file_store, few).recommendation == "wait"
    assert report_of(file_store, config_of(metrics=[{"name": "click"}])).recommendation == "wait"


def test_the_limit_of_who_sees_another_list_is_rarely_wrong_at_any_look() -> None:
    """It is wrong if the share that sees another list is larger, though none of the units did so far."""
    rng = np.random.default_rng(1)
    for share in (0.003, 0.02, 0.1):
        first = rng.geometric(share, 4000)  # the unit that sees the first list that differs
        claims = np.array([most_affected(units) for units in range(1, 3001)])
        wrong_from = int(np.argmax(claims < share)) + 1
        assert (first > wrong_from).mean() <= 0.055


def test_an_experiment_without_a_list_or_a_metric_has_a_report(file_store: Store) -> None:
    report = report_of(file_store, config_of())
    assert report.recommendation == "wait"
    assert "no list has been shown yet. 0 of 300 planned units" in report.text
    top = deciding(report)
    assert top is not None
    assert (top.estimate, top.interval, top.p) == (0.0, (-1.0, 1.0), 1.0)
    orjson.dumps(report)
    bare = report_of(file_store, config_of(metrics=[]))
    assert bare.recommendation == "wait"
    assert deciding(bare) is None


def test_a_past_look_leaves_out_what_came_later(store: Store) -> None:
    config = config_of()
    fill(store, config, units(200, 100))
    report = report_of(store, config, now=BEGAN + 300 * STEP)
    assert len(report.looks) > 10
    counted = [look.effects[0] for look in report.looks]
    assert [effect.arm for effect in counted] == ["pruned"] * len(counted)
    known = [effect for effect in counted if effect.low is not None]
    widths = [effect.high - effect.low for effect in known]  # type: ignore[operator]
    assert len(known) < len(counted)  # the first looks have too few units
    assert widths == sorted(widths, reverse=True)


def test_a_window_that_is_longer_than_lists_are_kept_is_told_at_once(file_store: Store) -> None:
    config = config_of(metrics=[{"name": "click", "window_hours": 73}])
    fill(file_store, config, units(1, 1))
    text = report_of(file_store, config, now=BEGAN + 10, kept_days=3).retention
    assert "count as click for 73 hours" in (text or "")
    assert "set outcome_days to at least 4" in (text or "")
    assert report_of(file_store, config, now=BEGAN + 10, kept_days=4).retention is None
