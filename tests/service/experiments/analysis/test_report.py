"""What an experiment says, from the rows in the database to the sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from pydantic import ValidationError
from scipy import stats
from sqlalchemy import text

from models.numbers import percent
from service.experiments.analysis.aggregates import Measured
from service.experiments.analysis.course import look_times
from service.experiments.analysis.metric_report import compare
from service.experiments.analysis.moments import Moments
from service.experiments.analysis.report import analyse
from service.experiments.analysis.report_spec import ReportSpec
from service.experiments.analysis.sequences import Boundary
from service.experiments.analysis.shadow_report import shadow_reports
from service.experiments.analysis.verdicts import judge
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.epochs import Epoch
from service.experiments.definition.events import Action, Exposure, Outcome, ShadowResult
from service.experiments.definition.metric import Metric
from service.experiments.definition.state import identity
from service.experiments.storage.store import Store

SHARES = {"control": 0.5, "pruned": 0.5}
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
    store.add_exposures(exposures)
    store.record_outcomes(outcomes, known=["prune20"])
    store.add_shadow(
        [
            ShadowResult(
                "prune20",
                "pruned",
                100.0,
                float(rng.normal(0.01, 0.02)),
                tuple(rng.uniform(0, 0.05, 20)),
                rank_correlation=0.95,
                ndcg_control=0.8,
                ndcg_arm=float(rng.normal(0.79, 0.01)),
            )
            for _ in range(shadows)
        ]
    )


def spec(*metrics: Metric, **changes: object) -> ReportSpec:
    values: dict[str, object] = {
        "experiment": "prune20",
        "control": "control",
        "arms": SHARES,
        "metrics": metrics,
        "planned_units": 1200,
    }
    return ReportSpec(**values | changes)  # type: ignore[arg-type]


CLICKS = Metric(name="clicks", kind="proportion", margin=0.3)


def test_an_arm_that_is_no_worse_than_the_margin_may_ship(store: Store) -> None:
    fill(store, shadows=200)
    report = analyse(store, spec(CLICKS, Metric(name="spent", covariate="past")), NOW)
    assert report.recommendation == "ship"
    assert report.exposures == {"control": 600, "pruned": 600}
    assert not report.sample_ratio.alarm
    (arm,) = report.arms
    clicks, spent = arm.metrics
    assert clicks.decision == "good_enough"
    assert clicks.units == clicks.control_units == 600
    assert clicks.relative_low is not None
    assert clicks.relative_low > -0.3
    assert "worse by at most" in report.text
    assert spent.decision == "undecided"
    assert spent.variance_explained == pytest.approx(1 / (1 + 0.3**2), abs=0.03)
    assert arm.shadow is not None
    assert arm.shadow.pairs == 4000
    assert arm.shadow.abs_delta_p99 == pytest.approx(0.0495, rel=0.06)
    delta, loss = arm.shadow.measures["mean_delta"], arm.shadow.measures["ndcg_loss"]
    assert delta.low is not None
    assert delta.low < 0.01 < delta.high  # type: ignore[operator]
    assert loss.mean == pytest.approx(0.01, abs=0.002)
    assert loss.low is not None
    assert loss.low < loss.mean < loss.high  # type: ignore[operator]
    assert orjson.loads(orjson.dumps(report))["arms"][0]["metrics"][0]["metric"] == "clicks"


def test_a_histogram_that_outlives_its_results_is_no_report(store: Store) -> None:
    """Results are deleted by the second, histograms by the day; in between the report was a KeyError."""
    noon = 43_200.0
    store.add_shadow([ShadowResult("prune20", "pruned", noon, 0.1, (0.1,))])
    assert store.delete_older_than(noon + 1) == 1
    assert shadow_reports(store, "prune20", ["pruned"], 0.05) == {}


def test_an_arm_that_is_too_bad_is_to_be_stopped(store: Store) -> None:
    fill(store, rates={"control": 0.6, "pruned": 0.2})
    report = analyse(store, spec(CLICKS), NOW)
    assert report.recommendation == "stop"
    assert report.arms[0].metrics[0].decision == "too_bad"
    assert "the margin is 30 %" in report.text
    # The same with lower numbers as the better ones.
    errors = CLICKS.model_copy(update={"better": "lower"})
    assert analyse(store, spec(errors), NOW).arms[0].metrics[0].decision == "better"


def test_an_arm_that_may_still_be_within_the_margin_is_not_to_be_stopped(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    fill(store, rates={"control": 0.6, "pruned": 0.48})
    open_yet = analyse(store, spec(CLICKS), NOW)
    assert open_yet.arms[0].metrics[0].decision == "worse"
    assert open_yet.recommendation == "wait"
    assert "the margin is 30 %, so it is not yet known whether that is too bad" in open_yet.text
    without_margin = analyse(store, spec(CLICKS.model_copy(update={"margin": None})), NOW)
    assert without_margin.arms[0].metrics[0].decision == "worse"
    assert without_margin.recommendation == "stop"
    secondary = analyse(store, spec(Metric(name="spent", margin=0.1), CLICKS), NOW)
    assert secondary.recommendation == "ship"
    assert "But: pruned on clicks is worse" in secondary.text


def test_shadow_results_that_are_all_alike_have_no_interval(store: Store) -> None:
    """30 requests that did not change showed a loss of exactly 0."""
    store.add_shadow(
        [ShadowResult("prune20", "pruned", 1.0, 0.0, (0.0,), ndcg_control=1.0, ndcg_arm=1.0)] * 30
    )
    loss = shadow_reports(store, "prune20", ["pruned"], 0.05)["pruned"].measures["ndcg_loss"]
    assert (loss.mean, loss.low, loss.high) == (0, None, None)


def test_the_requests_of_one_unit_are_one_observation_in_the_shadow(tmp_path: Path) -> None:
    """Sessions of 4 to 10 like requests: intervals missed the truth in 13 to 42 % of experiments."""
    store, rng = Store(f"sqlite:///{tmp_path / 'experiments.db'}"), np.random.default_rng(4)
    experiments, number = 120, 40
    means = rng.normal(0.0, 0.3, (experiments, number))
    rows = [
        ShadowResult(f"e{e}", "pruned", 1.0, float(rng.normal(means[e, u], 0.05)), (0.1,), unit=f"u{u}")
        for e in range(experiments)
        for u in range(number)
        for _ in range(rng.integers(4, 11))
    ]
    store.add_shadow(rows)
    found = [
        shadow_reports(store, f"e{e}", ["pruned"], 0.05)["pruned"].measures["mean_delta"]
        for e in range(experiments)
    ]
    assert {delta.units for delta in found} == {number}
    assert sum(delta.requests for delta in found) == len(rows)
    ends = [(delta.low, delta.high) for delta in found if delta.low is not None and delta.high is not None]
    assert len(ends) > 0.8 * experiments  # the others are too skewed so far
    assert sum(not low < 0 < high for low, high in ends) <= 0.05 * len(ends)
    first: dict[str, list[float]] = {}
    for row in rows:
        if row.experiment == "e0":
            first.setdefault(str(row.unit), []).append(row.mean_delta)
    by_unit = [np.mean(values) for values in first.values()]
    assert found[0].mean == pytest.approx(np.mean(by_unit))
    width = float(Boundary(0.05, 1000).multiplier(number) * stats.sem(by_unit))
    rare = -np.log(0.05) / number * (1 + abs(np.mean(by_unit)))
    assert found[0].high == pytest.approx(np.mean(by_unit) + width + rare)


def test_a_correlation_is_never_above_1(tmp_path: Path) -> None:
    store, rng = Store(f"sqlite:///{tmp_path / 'experiments.db'}"), np.random.default_rng(4)
    store.add_shadow(
        [ShadowResult("e", "pruned", 1.0, 0.1, (0.1,), rank_correlation=c) for c in rng.uniform(0.9, 1, 60)]
    )
    found = shadow_reports(store, "e", ["pruned"], 0.05)["pruned"].measures["rank_correlation"]
    assert (found.units, found.requests, found.high) == (60, 60, 1.0)


@pytest.mark.parametrize("past", [None, "clicks"])
def test_outcomes_that_a_slow_clock_puts_before_the_exposure_are_counted_and_said(
    store: Store, past: str | None
) -> None:
    """5 s of skew in one arm's sender took half of its clicks away, without a word."""
    arms = [("control", "pruned")[i % 2] for i in range(200)]
    store.add_exposures([Exposure("prune20", f"u{i}", arm, 1, 100.0, "v") for i, arm in enumerate(arms)])
    times = [110.0 - 5 * (arm == "pruned") - 10 * (i % 4 > 1) for i, arm in enumerate(arms)]
    store.record_outcomes(
        [Outcome("prune20", f"c{i}", f"u{i}", "clicks", 1.0, time) for i, time in enumerate(times)]
        + [Outcome("prune20", f"p{i}", f"u{i}", "clicks" if past else "past", 1.0, 5.0) for i in range(200)],
        known=["prune20"],
    )
    metric = Metric(name="clicks", kind="proportion", margin=0.3, covariate=past)
    report = analyse(store, spec(metric, Metric(name="views", kind="ratio", denominator="clicks")), NOW)
    (found, ratio) = report.arms[0].metrics
    assert (found.early, found.control_early) == (50, 0)
    assert "do not count: 50 of pruned, 0 of control. If they came after it" in report.text
    assert ratio.early == 50 + 100 * bool(past)


def test_an_arm_that_harms_a_guarded_metric_beyond_its_margin_does_not_ship(store: Store) -> None:
    fill(store, rates={"control": 0.6, "pruned": 0.2})
    spent = Metric(name="spent", margin=0.1)
    report = analyse(store, spec(spent, CLICKS), NOW)
    assert (report.arms[0].metrics[0].decision, report.recommendation) == ("good_enough", "stop")
    assert report.text.startswith("pruned on clicks is too bad")
    unguarded = analyse(store, spec(spent, CLICKS.model_copy(update={"margin": None})), NOW)
    assert unguarded.recommendation == "ship"
    assert "But: pruned on clicks is worse" in unguarded.text


def test_lost_units_make_every_result_invalid(store: Store) -> None:
    fill(store, keep=0.6)
    report = analyse(store, spec(CLICKS), NOW)
    assert report.recommendation == "invalid"
    assert report.sample_ratio.alarm
    assert report.sample_ratio.chi_square_p < 1e-6


def test_an_arm_that_was_rolled_back_is_no_mismatch_and_no_candidate(store: Store) -> None:
    fill(store, keep=0.6)
    report = analyse(store, spec(CLICKS, rolled_back=["pruned"]), NOW)
    assert not report.sample_ratio.alarm
    assert report.recommendation == "stop"
    assert "rolled back" in report.text


def test_harm_above_the_cap_is_shown_beside_it(store: Store) -> None:
    """The arm loses only the largest baskets: capped at the 95th percentile, most of the loss is unseen."""
    rng = np.random.default_rng(6)
    n = 1500
    baskets = rng.normal(20, 2, n)
    baskets[rng.random(n) < 0.06] = 40
    huge = (rng.random(n) < 0.33) & (baskets == 40)
    is_pruned = np.arange(n) % 2 == 1
    baskets[huge & ~is_pruned] = 220
    baskets[huge & is_pruned] = 22
    arms = np.where(is_pruned, "pruned", "control")
    store.add_exposures([Exposure("prune20", f"u{i}", str(arms[i]), 1, 100.0, "v") for i in range(n)])
    for start in range(0, n, 500):
        store.record_outcomes(
            [
                Outcome("prune20", f"o{i}", f"u{i}", "basket", baskets[i], 150.0)
                for i in range(start, start + 500)
            ],
            known=["prune20"],
        )
    with store._write() as db:  # as PostgreSQL does by itself; without it the planner knows nothing
        db.execute(text("ANALYZE"))
    capped = analyse(store, spec(Metric(name="basket", winsorize=0.95)), NOW).arms[0].metrics[0]
    raw = analyse(store, spec(Metric(name="basket")), NOW).arms[0].metrics[0]
    found = capped.uncapped
    assert found is not None
    assert found.cap == pytest.approx(np.quantile(baskets, 0.95, method="inverted_cdf"))
    assert (found.control_value, found.value) == (raw.control_value, raw.value)
    assert (found.relative_low, found.relative_high) == (raw.relative_low, raw.relative_high)
    assert found.relative == pytest.approx(
        baskets[is_pruned].mean() / baskets[~is_pruned].mean() - 1, rel=1e-9
    )
    assert abs(capped.relative) < 0.3 * abs(found.relative)  # type: ignore[arg-type, operator]
    assert raw.uncapped is None
    assert f"without this cap the mean is {raw.value:.4g} against {raw.control_value:.4g}" in capped.text


def test_a_cap_at_0_is_named_as_the_reason_why_nothing_is_decided(store: Store) -> None:
    """With 3 % buyers, winsorize 0.95 made every unit's sum 0: "too little data" at any size."""
    n = 1000
    store.add_exposures(
        [Exposure("prune20", f"u{i}", ("control", "pruned")[i % 2], 1, 100.0, "v") for i in range(n)]
    )
    buyers = [Outcome("prune20", f"o{i}", f"u{i}", "revenue", 5.0 + i % 7, 150.0) for i in range(0, n, 33)]
    store.record_outcomes(buyers, known=["prune20"])
    capped = Metric(name="revenue", winsorize=0.95, margin=0.1)
    report = analyse(store, spec(capped), NOW)
    assert report.recommendation == "wait"
    assert "`winsorize: 0.95` makes the sum of every unit 0; 96.9 % of the units have no" in report.text
    assert "set `winsorize` of the metric 'revenue' above 0.969 and below 1" in report.text
    assert "too little data" not in report.text
    higher = analyse(store, spec(capped.model_copy(update={"winsorize": 0.9695})), NOW)
    assert higher.arms[0].metrics[0].low is not None
    # A metric that nobody has any of is no mistake of the cap.
    empty = analyse(store, spec(Metric(name="returns", winsorize=0.95)), NOW)
    assert "too little data" in empty.text


@pytest.mark.parametrize(
    "kind", [{"covariate": "past"}, {"kind": "ratio", "denominator": "visits", "covariate": "past"}]
)
def test_sums_that_the_cap_makes_equal_have_no_interval_of_rounding_errors(
    store: Store, kind: dict[str, str]
) -> None:
    """All large buyers are in control. A covariate left a variance of 1e-63, and the verdict was "ship"."""
    n, rng = 1000, np.random.default_rng(3)
    store.add_exposures(
        [Exposure("prune20", f"u{i}", ("control", "pruned")[i % 2], 1, 100.0, "v") for i in range(n)]
    )
    sums = {
        "revenue": [(199.8 if i % 40 == 0 else 9.99, 150.0) for i in range(n)],
        "visits": [(3.0, 150.0)] * n,
        "past": [(float(rng.normal(5, 1)), 50.0) for i in range(n)],
    }
    for name, rows in sums.items():
        store.record_outcomes(
            [Outcome("prune20", f"{name}{i}", f"u{i}", name, *row) for i, row in enumerate(rows)],
            known=["prune20"],
        )
    report = analyse(store, spec(Metric(name="revenue", winsorize=0.97, margin=0.1, **kind)), NOW)
    (found,) = report.arms[0].metrics
    assert found.low is None
    assert found.decision == "undecided"
    assert report.recommendation == "wait"
    assert "`winsorize: 0.97` makes the sum of every unit 9.99" in report.text


def test_an_epoch_of_known_users_alone_has_its_place_in_time(store: Store) -> None:
    """An arm comes back, three known users return, and then the schedule takes in a quarter of all."""

    def came(epoch: Epoch, time: float, units: range, *arms: str) -> None:
        store.add_exposures(
            [Exposure("prune20", f"{arm}{i}", arm, 1, time, "v", epoch.label) for arm in arms for i in units]
        )

    came(Epoch(1, 0.05), 10, range(300), "control", "pruned")
    came(Epoch(2, 0.05, ("pruned",)), 20, range(300, 400), "control")
    came(Epoch(3, 0.05), 30, range(300, 303), "control")
    came(Epoch(3, 0.25), 40, range(500, 1500), "control", "pruned")
    ratio = analyse(store, spec(), NOW).sample_ratio
    assert [(epoch.traffic, dict(epoch.units)) for epoch in ratio.epochs] == [
        (0.05, {"control": 300, "pruned": 300}),
        (0.05, {"control": 3, "pruned": 0}),
        (0.25, {"control": 1000, "pruned": 1000}),
    ]
    assert "(now: control 1,000, pruned 1,000)" in ratio.text
    came(Epoch(3, 0.5), 50, range(303, 306), "control")  # the next step, so far with known users alone
    assert [epoch.traffic for epoch in analyse(store, spec(), NOW).sample_ratio.epochs] == [
        0.05,
        0.05,
        0.25,
        0.5,
    ]


def test_a_ratio_has_its_interval_although_the_cap_makes_its_numerators_the_same(store: Store) -> None:
    n = 400
    store.add_exposures(
        [Exposure("prune20", f"u{i}", ("control", "pruned")[i % 2], 1, 100.0, "v") for i in range(n)]
    )
    sums = [("orders", 5.0 if i % 100 < 2 else 1.0, i) for i in range(n)] + [
        ("visits", 1.0 + i % 3, i) for i in range(n)
    ]
    rows = [Outcome("prune20", f"{name}{i}", f"u{i}", name, value, 150.0) for name, value, i in sums]
    store.record_outcomes(rows, known=["prune20"])
    ratio = Metric(name="orders", kind="ratio", denominator="visits", winsorize=0.97, margin=0.5)
    (found,) = analyse(store, spec(ratio), NOW).arms[0].metrics
    assert found.low is not None
    assert found.decision == "good_enough"
    assert "no interval" not in found.text


def test_the_shadow_shares_alpha_out_over_the_arms(store: Store) -> None:
    fill(store, shadows=100)
    (two,) = analyse(store, spec(CLICKS), NOW).arms
    arms = {"control": 0.25, "pruned": 0.25, "other": 0.25, "third": 0.25}
    four = analyse(store, spec(CLICKS, arms=arms), NOW).arms[0]
    expected = shadow_reports(store, "prune20", ["pruned"], 0.05 / 3)["pruned"]
    assert four.shadow == expected
    assert two.shadow is not None
    assert expected.measures["mean_delta"].high > two.shadow.measures["mean_delta"].high  # type: ignore[operator]


def test_units_are_not_analysed_with_a_config_that_they_did_not_get(tmp_path: Path) -> None:
    """A 50 : 50 experiment with a config of 90 : 10 seemed to have lost units."""
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    fill(store)
    began, now = (
        ExperimentConfig.model_validate(
            {
                "name": "prune20",
                "salt": "s",
                "arms": [
                    {"name": "control", "variant": "full", "weight": weight},
                    {"name": "pruned", "variant": "cut", "weight": 100 - weight},
                ],
                "metrics": [{"name": "clicks", "kind": "proportion"}],
            }
        )
        for weight in (50, 90)
    )
    log = [Action("prune20", "start", 90.0, "schedule", detail=identity(began))]
    assert analyse(store, ReportSpec.of(began, log, NOW), NOW).arms
    report = analyse(store, ReportSpec.of(now, log, NOW), NOW)
    assert (report.recommendation, report.arms) == ("invalid", [])
    assert report.exposures == {"control": 600, "pruned": 600}
    assert not report.sample_ratio.alarm
    assert "It began with salt s; arms control=full:50, pruned=cut:50; this config has salt s" in report.text
    assert look_times(now, log, NOW) == []


def test_alpha_is_shared_out_over_the_arms(store: Store) -> None:
    fill(store, rates={"control": 0.5, "pruned": 0.5, "other": 0.5})
    two = analyse(store, spec(CLICKS), NOW).arms[0].metrics[0]
    shares = {"control": 1 / 3, "pruned": 1 / 3, "other": 1 / 3}
    three = analyse(store, spec(CLICKS, arms=shares), NOW).arms
    assert [arm.arm for arm in three] == ["pruned", "other"]
    assert three[0].metrics[0].high > two.high  # type: ignore[operator]


def test_the_p_value_is_below_alpha_if_the_interval_excludes_0(tmp_path: Path) -> None:
    """Of several arms: they share alpha."""
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    shares = {"control": 0.25, "a": 0.25, "b": 0.25, "c": 0.25}
    fill(store, rates={"control": 0.4, "a": 0.4, "b": 0.52, "c": 0.7}, units=1200)
    found = [arm.metrics[0] for arm in analyse(store, spec(CLICKS, arms=shares), NOW).arms]
    assert [metric.low > 0 for metric in found] == [metric.p_value < 0.05 for metric in found]  # type: ignore[operator]


def test_an_empty_experiment_has_a_report_without_numbers(store: Store) -> None:
    report = analyse(store, spec(CLICKS, Metric(name="r", kind="ratio", denominator="d")), NOW)
    assert report.recommendation == "wait"
    assert "0 of 1,200 planned units" in report.text
    assert report.arms[0].metrics[0].difference is None
    assert report.arms[0].shadow is None
    orjson.dumps(report)
    assert analyse(store, spec(), NOW).recommendation == "wait"


def test_a_margin_relative_to_a_mean_near_zero_decides_nothing_while_the_arms_are_alike(store: Store) -> None:
    fill(store, rates={"control": 0.003, "pruned": 0.003})
    metric = analyse(store, spec(CLICKS), NOW).arms[0].metrics[0]
    assert metric.decision == "undecided"
    assert "the margin is 30 % of control's value, which is not clearly above 0" in metric.text


def test_harm_to_a_metric_that_control_has_next_to_nothing_of_is_said(tmp_path: Path) -> None:
    """Errors rose from 0.1 % to 9.75 %, stayed "undecided", and the recommendation was to ship."""
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    fill(store, rates={"control": 0.001, "pruned": 0.0975})
    errors = Metric(name="clicks", kind="proportion", better="lower", margin=0.1)
    alone = analyse(store, spec(errors), NOW)
    assert (alone.recommendation, alone.arms[0].metrics[0].decision) == ("stop", "too_bad")
    guarded = analyse(store, spec(Metric(name="spent", margin=0.1), errors), NOW)
    assert guarded.recommendation == "stop"
    assert "pruned on clicks is too bad: worse by 0." in guarded.text


def moments(rate: float, kind: str, rng: np.random.Generator) -> Moments:
    events = (rng.random(4000) < rate).astype(np.float64)
    if kind == "ratio":
        return Moments.of(events, 1.0 + rng.poisson(2.0, 4000))
    return Moments.of(events, covariate=rng.normal(0, 1, 4000) + events if kind == "covariate" else 0.0)


@pytest.mark.parametrize("kind", ["proportion", "mean", "ratio", "covariate"])
@pytest.mark.parametrize("control", [0.001, 0.0])
def test_every_kind_of_metric_is_judged_near_zero(kind: str, control: float) -> None:
    rng = np.random.default_rng(2)
    found = dict(zip(SHARES, (moments(rate, kind, rng) for rate in (control, 0.03)), strict=True))
    more = {"ratio": {"kind": "ratio", "denominator": "n"}, "covariate": {"covariate": "past"}}
    metric = Metric.model_validate(
        {"name": "errors", "better": "lower", "margin": 0.1} | more.get(kind, {"kind": kind})
    )
    assert compare(metric, Measured(found), "pruned", spec(metric)).decision == "too_bad"


def test_a_margin_relative_to_a_loss_is_refused_with_the_way_out() -> None:
    rng = np.random.default_rng(2)
    found = {arm: Moments.of(rng.normal(-3, 1, 500)) for arm in SHARES}
    metric = Metric(name="profit", margin=0.1)
    report = compare(metric, Measured(found), "pruned", spec(metric))
    assert report.decision == "undecided"
    assert "give the metric 'profit' a margin in its own unit with `relative: false`" in report.text


@pytest.mark.parametrize(
    ("low", "high", "margin", "sign", "decision"),
    [
        (0.01, 0.02, 0.03, 1, "better"),
        (-0.02, 0.02, 0.03, 1, "good_enough"),
        (-0.02, -0.01, 0.03, 1, "worse_within_margin"),
        (-0.05, -0.01, 0.03, 1, "worse"),
        (-0.05, -0.04, 0.03, 1, "too_bad"),
        (-0.05, 0.01, 0.03, 1, "undecided"),
        (-0.02, -0.01, None, 1, "worse"),
        (-0.01, 0.02, 0.03, -1, "good_enough"),
        (-0.02, -0.01, 0.03, -1, "better"),
        (0.04, 0.05, 0.03, -1, "too_bad"),
        (float("nan"), float("nan"), 0.03, 1, "undecided"),
    ],
)
def test_verdicts(low: float, high: float, margin: float | None, sign: int, decision: str) -> None:
    assert judge("x", low, high, margin=margin, sign=sign, relative=True).decision == decision


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a", "kind": "ratio"}, "a ratio needs one"),
        ({"name": "a", "denominator": "b"}, "belongs to kind: ratio"),
        ({"name": "a", "kind": "ratio", "denominator": "a"}, "another metric"),
        ({"name": "a", "margin": 0.0}, "margin"),
        ({"name": "a", "margin": 2.0}, "below 1"),
        ({"name": "a", "kind": "proportion", "winsorize": 0.99}, "no effect"),
        ({"name": "a", "winsorize": 0.4}, "winsorize"),
        ({"name": "a", "window_hours": 0.0}, "window_hours"),
        ({"name": "a", "colour": "red"}, "colour"),
    ],
)
def test_a_wrong_metric_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Metric.model_validate(values)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (3.24, "+324 %"),
        (-0.0, "0 %"),
        (1e-12, "0 %"),
        (0.0123, "+1.2 %"),
        (-0.5, "-50 %"),
        (12.3, "+1,230 %"),
    ],
)
def test_changes_are_printed_without_exponents_and_minus_0(value: float, printed: str) -> None:
    """It said "3e+02 % better" and "−0"."""
    assert percent(value, sign=True) == printed
