"""What an experiment says, from the rows in the database to the sentence."""

import base64
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from headroom.models.numbers import minute, percent
from headroom.service.experiments import report_page
from headroom.service.experiments.analysis import (
    MAX_LOOKS,
    analyse,
    compare_arm,
    look_times,
)
from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import ALPHA, Boundary
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.log import Entry
from headroom.service.experiments.report import Effect, Report
from headroom.service.experiments.shadow_report import shadow_reports
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import sentence
from tests.service.experiments.making import (
    act,
    declares,
    experiment,
    logged,
    moments_of,
    send,
    shadowed,
)

ARMS = ("control", "pruned")
NOW = 1e6


def fill(
    store: Store,
    *,
    units: int = 1200,
    rates: dict[str, float] | None = None,
    keep: float = 1.0,
    shadows: int = 0,
) -> None:
    """Units in turn to the arms, each with clicks at the arm's rate; keep: of the pruned arm's exposures."""
    rng = np.random.default_rng(1)
    rates = rates or {"control": 0.5, "pruned": 0.5}
    exposures, outcomes = [], []
    for i in range(units):
        arm = list(rates)[i % len(rates)]
        if arm == "pruned" and rng.random() > keep:
            continue
        exposures.append(Exposure("prune20", f"u{i}", arm, 1, 100.0, "v"))
        past = rng.normal(5, 1)
        outcomes.append(Outcome("prune20", f"p{i}", f"u{i}", "past", past, 50.0))
        outcomes.append(Outcome("prune20", f"s{i}", f"u{i}", "spent", past + rng.normal(0, 0.3), 150.0))
        if rng.random() < rates[arm]:
            outcomes.append(Outcome("prune20", f"c{i}", f"u{i}", "clicks", 1.0, 200.0))
    store.add(exposures)
    send(store, outcomes, [experiment()])
    store.add(
        [
            shadowed(
                float(rng.normal(0.01, 0.02)),
                float(rng.uniform(0, 0.05)),
                rank_correlation=0.95,
                ndcg_delta=float(rng.normal(-0.01, 0.01)),
            )
            for _ in range(shadows)
        ]
    )


def report_of(
    store: Store, *metrics: Metric, arms: tuple[str, ...] = ARMS, log: tuple[Entry, ...] = ()
) -> Report:
    config = experiment(*arms, metrics=metrics, planned_units=1200)
    return analyse(store, logged(config, *log), NOW)


CLICKS = Metric(name="clicks", kind="proportion", margin=0.3)
BOUNDARY = Boundary(ALPHA, 10_000)


SPENT = Metric(name="spent", margin=0.1)
ERRORS = CLICKS.model_copy(update={"better": "lower", "margin": 0.1})
UNGUARDED = CLICKS.model_copy(update={"margin": None})
TOO_BAD, OPEN, ALIKE, RARE = (0.6, 0.2), (0.6, 0.48), (0.003, 0.003), (0.001, 0.0975)
"""The shares of units that click, of control and of the other arm."""


@pytest.mark.parametrize(
    ("rates", "metrics", "recommendation", "decision", "text"),
    [
        (TOO_BAD, [CLICKS], "stop", "too_bad", "the margin is 30 %"),
        (TOO_BAD, [ERRORS], "ship", "better", "is better: −"),
        (OPEN, [CLICKS], "wait", "worse", "1,200 of 1,200 planned units are exposed."),
        (OPEN, [UNGUARDED], "stop", "worse", "of control's value."),
        (OPEN, [SPENT, CLICKS], "ship", "good_enough", "But: pruned on clicks is worse"),
        # A guarded metric that may still be worse than its margin is named.
        (ALIKE, [SPENT, CLICKS], "ship", "good_enough", "But: pruned on clicks is undecided: −"),
        # An arm that harms a guarded metric by more than its margin does not ship.
        (TOO_BAD, [SPENT, CLICKS], "stop", "good_enough", "pruned on clicks is too bad"),
        (TOO_BAD, [SPENT, UNGUARDED], "ship", "good_enough", "But: pruned on clicks is worse"),
        # Control has next to nothing: errors rose from 0.1 % to 9.75 % and stayed "undecided".
        (ALIKE, [CLICKS], "wait", "undecided", "30 % of control's value, which is not clearly above 0"),
        (RARE, [ERRORS], "stop", "too_bad", "is too bad: +0.0"),
        (RARE, [SPENT, ERRORS], "stop", "good_enough", "pruned on clicks is too bad: +0.0"),
    ],
)
def test_what_to_do_follows_from_the_first_metric_and_the_others_margins(
    tmp_path: Path,
    rates: tuple[float, float],
    metrics: list[Metric],
    recommendation: str,
    decision: str,
    text: str,
) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'experiments.db'}")) as store:
        fill(store, rates=dict(zip(ARMS, rates, strict=True)))
        report = report_of(store, *metrics)
    assert (report.recommendation, report.arms[0].metrics[0].decision) == (recommendation, decision)
    assert text in report.text


def test_lost_units_make_every_result_invalid_unless_their_arm_was_rolled_back(file_store: Store) -> None:
    fill(file_store, keep=0.6)
    report = report_of(file_store, CLICKS)
    assert report.recommendation == "invalid"
    assert report.sample_ratio.alarm
    assert report.sample_ratio.sequential_p < 1e-6
    report = report_of(file_store, CLICKS, log=(act("rollback", 5e5, arm="pruned"),))
    assert not report.sample_ratio.alarm
    assert report.recommendation == "stop"
    assert "rolled back" in report.text


def test_arms_share_alpha(tmp_path: Path) -> None:
    arms = ("control", "pruned", "b", "c")
    with closing(Store(f"sqlite:///{tmp_path / 'experiments.db'}")) as store:
        fill(store, rates=dict(zip(arms, (0.4, 0.4, 0.52, 0.7), strict=True)), shadows=100)
        alone = report_of(store, CLICKS).arms[0]
        found = report_of(store, CLICKS, arms=arms).arms
        shadow = shadow_reports(store, "prune20", ["pruned"], 0.05 / 3)["pruned"]
    assert [arm.arm for arm in found] == ["pruned", "b", "c"]
    metrics = [arm.metrics[0] for arm in found]
    assert metrics[0].high > alone.metrics[0].high  # type: ignore[operator]
    assert found[0].shadow == shadow
    assert alone.shadow is not None
    assert shadow.measures["mean_delta"].high > alone.shadow.measures["mean_delta"].high  # type: ignore[operator]


@pytest.mark.parametrize("treatments", [1, 3])
def test_a_p_value_is_below_alpha_exactly_if_the_arms_interval_excludes_0(treatments: int) -> None:
    """With three arms against control it said 2 % of an interval that held 0, at every such rate."""
    boundary = Boundary(ALPHA / treatments, 2000)
    control = moments_of(np.arange(1000) < 400)
    found = dict[bool, int]()
    for clicks in range(400, 520, 4):
        moments = {"control": control, "pruned": moments_of(np.arange(1000) < clicks)}
        report = compare_arm(CLICKS, moments, boundary, treatments)
        assert report.low is not None
        assert report.p_value is not None
        assert (report.p_value < ALPHA) == (report.low > 0), clicks
        found[report.low > 0] = found.get(report.low > 0, 0) + 1
    assert min(found[False], found[True]) >= 5, "the rates do not reach both sides"


@pytest.mark.parametrize("past", [None, "clicks"])
def test_outcomes_that_a_slow_clock_puts_before_the_exposure_are_counted_and_said(
    file_store: Store, past: str | None
) -> None:
    """5 s of skew in one arm's sender took half of its clicks away, without a word."""
    arms = [("control", "pruned")[i % 2] for i in range(200)]
    file_store.add([Exposure("prune20", f"u{i}", arm, 1, 100.0, "v") for i, arm in enumerate(arms)])
    times = [110.0 - 5 * (arm == "pruned") - 10 * (i % 4 > 1) for i, arm in enumerate(arms)]
    send(
        file_store,
        [Outcome("prune20", f"c{i}", f"u{i}", "clicks", 1.0, time) for i, time in enumerate(times)]
        + [Outcome("prune20", f"p{i}", f"u{i}", "clicks" if past else "past", 1.0, 5.0) for i in range(200)],
        [experiment()],
    )
    metric = Metric(name="clicks", kind="proportion", margin=0.3, covariate=past)
    report = report_of(file_store, metric, Metric(name="views", kind="ratio", denominator="clicks"))
    assert "do not count: 0 of control, 50 of pruned. If they came after it" in report.text


def test_units_of_two_arms_are_left_out_and_told(file_store: Store) -> None:
    fill(file_store)
    file_store.add([Exposure("prune20", "u1", "control", 1, 130.0, "v")])
    report = report_of(file_store, CLICKS)
    assert (report.in_both_arms, report.exposures) == (1, {"control": 600, "pruned": 599})
    assert "1 unit was sent to more than one arm, and left out." in report.text


def test_a_ratio_that_divides_by_nothing_has_no_value_and_no_p_and_says_why(file_store: Store) -> None:
    """Its p was 1, and too little data was the reason."""
    fill(file_store)
    report = report_of(file_store, Metric(name="clicks", kind="ratio", denominator="shown"))
    (found,) = report.arms[0].metrics
    assert (found.value, found.control_value, found.p_value) == (None, None, None)
    assert found.decision == "undecided"
    assert "the values of 'shown' add up to 0 in control and pruned" in report.text
    Report.from_json(report.as_json())


def test_an_empty_experiment_has_a_report_without_numbers(file_store: Store) -> None:
    report = report_of(file_store, CLICKS, Metric(name="r", kind="ratio", denominator="d"))
    assert report.recommendation == "wait"
    assert "0 of 1,200 planned units" in report.text
    assert report.arms[0].metrics[0].difference is None
    assert report.arms[0].shadow is None
    assert Report.from_json(report.as_json()) == report
    assert report_of(file_store).recommendation == "wait"


def test_a_margin_relative_to_a_loss_is_refused_with_the_way_out() -> None:
    rng = np.random.default_rng(2)
    found = {arm: moments_of(rng.normal(-3, 1, 500)) for arm in ARMS}
    metric = Metric(name="profit", margin=0.1)
    report = compare_arm(metric, found, BOUNDARY)
    assert report.decision == "undecided"
    assert "give the metric 'profit' a margin in its own unit with `relative: false`" in report.text


def test_a_verdict_says_no_more_than_its_interval() -> None:
    """They were rounded to the nearest of two digits: "at most 12 %" of 12.49."""
    said = sentence("x", "good_enough", (-0.12491, 0.01004), percent, "; the margin is 12.5 %")
    assert said == "x is good enough: −12.5 % to +1.01 %; the margin is 12.5 %."
    assert "is better: +1.23 % to +5.68 %." in sentence("x", "better", (0.012349, 0.056701), percent)


HOUR = 3600.0
BEGAN = 1e6
COURSE = experiment(
    metrics=[
        {"name": "click", "kind": "proportion", "margin": 0.1},
        {"name": "late", "window_hours": 2.0},
        {"name": "spent", "covariate": "past"},
        {"name": "viewed", "kind": "ratio", "denominator": "click"},
    ]
)
RAMPS = (act("ramp", BEGAN + 3 * HOUR, traffic=0.03), act("ramp", BEGAN + 6 * HOUR, traffic=1.0))
BEGUN = logged(COURSE, *RAMPS, time=BEGAN)


def fill_hours(store: Store, *, until: float) -> None:
    """What happened before a time: a unit each minute for ten hours, and what it did in the next hours."""
    rng = np.random.default_rng(2)
    in_both_arms = Exposure("prune20", "u0", "pruned", 5001, BEGAN + 15 * HOUR, "v")
    exposures, outcomes = [in_both_arms], []
    for number in range(600):
        at = BEGAN + 60.0 * number
        arm = ("control", "pruned")[number % 2]
        exposures.append(Exposure("prune20", f"u{number}", arm, 5000 * (number % 2) + number, at, "v"))
        for metric, delay, value in (
            ("click", 30.0, 1.0),
            ("late", 5000.0, 2.0),
            ("spent", 700.0, rng.gamma(2)),
            ("past", -100.0, rng.gamma(2)),
            ("viewed", 300.0, 3.0),
        ):
            if rng.random() < 0.4:
                name = f"{metric}{number}"
                outcomes.append(Outcome("prune20", name, f"u{number}", metric, float(value), at + delay))
    store.append(declares(COURSE, time=BEGAN, version="v"))
    store.add([row for row in exposures if row.time <= until])
    send(store, [row for row in outcomes if row.time <= until], [COURSE])


@pytest.mark.parametrize("hours", [10.0, 20.0])
def test_each_look_is_the_report_of_the_facts_and_the_log_up_to_its_time(
    store: Store, tmp_path_factory: pytest.TempPathFactory, hours: float
) -> None:
    """Whoever asks, and whenever: nothing is remembered of earlier reports."""
    fill_hours(store, until=BEGAN + 20 * HOUR)
    looks = analyse(store, BEGUN, BEGAN + hours * HOUR).looks
    for look in looks[:: len(looks) // 6]:
        with closing(Store(f"sqlite:///{tmp_path_factory.mktemp('then')}/then.db")) as then:
            fill_hours(then, until=look.time)
            known = logged(COURSE, *(row for row in RAMPS if row.time <= look.time), time=BEGAN)
            said = analyse(then, known, look.time).arms[0].metrics
        for effect, report in zip(look.effects, said, strict=True):
            assert {name: getattr(report, name) for name in Effect.__slots__} == asdict(effect)


def test_looks_are_even_stay_where_they_are_and_end_with_the_experiment(file_store: Store) -> None:
    fill_hours(file_store, until=BEGAN + 20 * HOUR)
    early = {look.time: look for look in analyse(file_store, BEGUN, BEGAN + 10 * HOUR).looks}
    late = [look for look in analyse(file_store, BEGUN, BEGAN + 19 * HOUR).looks if look.time < max(early)]
    assert len(late) > 10
    assert all(look == early[look.time] for look in late)
    stop = act("stop", BEGAN + 4 * HOUR)
    assert look_times(logged(COURSE, stop, time=BEGAN), BEGAN + 100 * HOUR)[-1] <= stop.time
    for hours in (0.1, 10, 30, 1e3, 1e5):
        times = look_times(BEGUN, BEGAN + hours * HOUR)
        assert min(MAX_LOOKS / 2, hours * 60 - 1) <= len(times) <= MAX_LOOKS
        assert np.ptp(np.diff(times)) < 1e-6


def test_the_chart_of_a_stopped_experiment_ends_when_it_was_stopped(file_store: Store) -> None:
    fill_hours(file_store, until=BEGAN + 20 * HOUR)
    assert analyse(file_store, BEGUN, BEGAN + 10 * HOUR).end is None
    stopped = logged(COURSE, act("stop", BEGAN + 4 * HOUR), time=BEGAN)
    report = analyse(file_store, stopped, BEGAN + 100 * HOUR)
    assert report.end == BEGAN + 4 * HOUR
    assert max(look.time for look in report.looks) <= report.end
    state = {"status": "stopped", "traffic": 0.0, "rolled_back": [], "shipped": None}
    shown = {"name": "hours", "kind": "ab", "arms": [], "history": [], "report": asdict(report)} | state
    image = report_page.html(shown).partition("data:image/svg+xml;base64,")[2].partition('"')[0]
    drawing = base64.b64decode(image).decode()
    assert minute(report.end) in drawing
    assert minute(report.time) not in drawing
