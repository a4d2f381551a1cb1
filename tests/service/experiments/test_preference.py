"""What an interleaving experiment says, from the lists and clicks in the database to the sentence."""

import numpy as np
import pytest
from scipy import stats

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.clicks import LIST
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig
from headroom.service.experiments.estimates import Boundary
from headroom.service.experiments.events import Click, Exposure, Impression
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.preference import most_affected, preference
from headroom.service.experiments.report import Preference, Report
from headroom.service.experiments.store import Store
from tests.service.experiments.making import experiment, logged, send

BEGAN = 1000.0
STEP = 60.0
TEAMS = "cts"
"""Who owns the three titles of each list."""

NOBODY_SAW = np.zeros(0, LIST)


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


def report_of(store: Store, config: ExperimentConfig, *, now: float = 1e6) -> Report:
    return analyse(store, logged(config, time=BEGAN - 1), now)


def units(treatment: int, control: int, both: int = 0, neither: int = 0, shared: int = 0) -> list[str]:
    """So many units that click the treatment's title, control's, both, none, and the shared one."""
    clicked = ["t"] * treatment + ["c"] * control + ["ct"] * both + [""] * neither + ["s"] * shared
    order = np.random.default_rng(3).permutation(len(clicked))
    return [clicked[index] for index in order]


@pytest.mark.parametrize(
    ("clicked", "recommendation", "decision", "text"),
    [
        (units(260, 140), "ship", "better", "pruned on click is better: +0.1"),
        (units(390, 390, 20), "ship", "good_enough", "; the margin is 0.2. 390 units clicked more"),
        (units(40, 260), "stop", "too_bad", "pruned on click is too bad: −0.8"),
        (units(100, 200), "wait", "worse", "300 of 300 planned units have clicked a title of one arm."),
        (units(20, 20, 5), "wait", "undecided", "45 of 300 planned units have clicked a title of one arm."),
        (units(5, 4, 0, 80, 40), "wait", "undecided", "too few clicks for an interval: 9 units clicked"),
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
    assert not report.sample_ratio.alarm
    assert report.exposures == {"interleaved": len(clicked)}
    found = metric.preference
    assert found == report.preference
    assert found is not None
    values = [("t" in one) - ("c" in one) for one in clicked if set(one) & set("ct")]
    assert found.estimate == pytest.approx(np.mean(values))
    assert (found.wins, found.losses) == (clicked.count("t"), clicked.count("c"))
    assert found.units == metric.units == len(values)
    assert found.viewers == found.impressions == found.differing == len(clicked)
    if metric.low is not None:
        assert found.interval == (metric.low, metric.high)


def test_a_variant_that_never_changes_a_list_is_told_at_once(file_store: Store) -> None:
    config = config_of(metrics=[{"name": "click", "margin": 0.05}])
    fill(file_store, config, units(0, 0, neither=40, shared=20), teams="sss")
    report = report_of(file_store, config)
    assert report.recommendation == "ship"
    assert "pruned showed control's order in all 60 lists of 60 units" in report.text
    assert "at most 4.88 % of the units ever see another order; the margin is 0.05" in report.text
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
    assert report.preference == Preference("click", 0.0, (-1.0, 1.0), 1.0, 0, 0, 0, 0, 0, 0, 0)
    assert Report.from_json(report.as_json()) == report
    bare = report_of(file_store, config_of(metrics=[]))
    assert (bare.recommendation, bare.preference) == ("wait", None)


def test_a_past_look_leaves_out_what_came_later(store: Store) -> None:
    config = config_of()
    clicked = units(200, 100)
    fill(store, config, clicked)
    report = report_of(store, config, now=BEGAN + 300 * STEP)
    assert len(report.looks) > 10
    for look in report.looks:
        seen = [("t" in one) - ("c" in one) for one in clicked[: int((look.time - 5 - BEGAN) // STEP) + 1]]
        (effect,) = look.effects
        assert effect.difference == pytest.approx(np.mean(seen))
        assert (effect.low is None) == (len(seen) < 30)


def judge(values: np.ndarray) -> Preference:
    return preference("click", NOBODY_SAW, values, Boundary(0.05, 1000))


def test_fewer_than_thirty_units_make_no_claim() -> None:
    few = judge(np.ones(29))
    assert (few.estimate, few.interval, few.p) == (1.0, (-1.0, 1.0), 1.0)
    enough = judge(np.ones(30))
    assert 0 < enough.interval[0] < 1
    assert enough.p < 0.05


def test_the_interval_is_the_mean_and_its_standard_error_times_the_boundary() -> None:
    values = np.random.default_rng(1).choice([-1.0, -0.5, 0.0, 0.5, 1.0], 4000, p=[0.3, 0.1, 0.2, 0.1, 0.3])
    found = judge(values)
    radius = stats.sem(values) * float(Boundary(0.05, 1000).multiplier(4000))
    assert found.interval == pytest.approx((values.mean() - radius, values.mean() + radius), abs=1e-4)
    swapped = judge(-values[::-1])
    assert (swapped.estimate, swapped.p) == (-found.estimate, found.p)
    assert swapped.interval == (-found.interval[1], -found.interval[0])


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.05, 0.08, 0.2])
def test_p_is_below_alpha_exactly_if_the_interval_excludes_zero(shift: float) -> None:
    values = np.random.default_rng(2).choice([-1.0, 1.0], 3000, p=[0.5 - shift / 2, 0.5 + shift / 2])
    found = judge(values)
    assert (found.p < 0.05) == (found.interval[0] > 0 or found.interval[1] < 0)


def test_units_that_all_prefer_one_arm_do_not_rule_out_others_that_have_not_come_yet() -> None:
    """One unit in 50 prefers the treatment; the first 30 may well be all control's."""
    misses = 0
    for seed in range(400):
        values = np.where(np.random.default_rng(seed).random(600) < 0.02, 1.0, -1.0)
        looks = [judge(values[:units]).interval for units in range(30, 601, 30)]
        misses += any(not low <= -0.96 <= high for low, high in looks)
    assert misses <= 20
