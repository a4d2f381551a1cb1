"""Plans: what is wrong in one is said in one sentence, before anything is sent."""

from pathlib import Path

import pytest

from headroom.loadtest import arrivals, judging
from headroom.loadtest.plan import SCENARIOS, PlanError, combined, make_plan, read_scenario, seconds, weights
from headroom.loadtest.workload import Workload

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "value"),
    [(3, 3), ("30", 30), ("500ms", 0.5), ("1.5s", 1.5), ("5m", 300), ("2h", 7200), ("10us", 1e-5)],
)
def test_durations_read_as_people_write_them(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none,random:0.2@1", {"none": 1, "random:0.2@1": 1}),
        ("none=3,0-5.*=1", {"none": 3, "0-5.*": 1}),
        ("2.3,7.*;none=2", {"2.3,7.*": 1, "none": 2}),
        ("keep:2.3,4.*;", {"keep:2.3,4.*": 1}),
    ],
)
def test_masks_with_commas_of_their_own_can_be_listed(text, value):
    assert weights(text) == value


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_is_a_good_plan(path):
    plan = make_plan({**read_scenario(path.stem), "url": URL})
    assert plan.description
    assert judging.parse(plan.slo)
    if plan.saturation_factor:
        plan = plan.changed(rate=10)
    assert next(Workload(plan, [("a query", "a title")], {}).requests())


def test_the_scenarios_that_are_promised_are_there():
    promised = {"repeats", "steady", "spike", "overload", "mixed-tenants", "ab-split"}
    assert promised == {path.stem for path in SCENARIOS.glob("*.yaml")}
    assert make_plan({**read_scenario("overload"), "url": URL}).saturation_factor == 2


def test_two_runs_of_steady_have_the_requests_that_p99_needs_in_a_comparison():
    """10 of 1,000 requests lie beyond p99."""
    for seed in range(1, 6):
        assert arrivals.count(combined("steady", {"url": URL, "seed": seed})) >= 1000


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"url": "localhost:8000"}, "not an http"),
        ({"rate": "nan"}, "rate: must be above 0 and finite"),
        ({"rate": "fast"}, "neither a number nor a multiple"),
        ({"duration": "soon"}, "duration: 'soon' is not a duration"),
        ({"arrivals": "ramp"}, "needs rate_to"),
        ({"arrivals": "poisson", "trace": "t.csv"}, "poisson and a trace exclude each other"),
        ({"rate_to": 9}, r"rate_to \(--rate-to\): it needs arrivals \(--arrivals\) ramp or step"),
        ({"arrivals": "step", "rate_to": 9, "phases": [{"for": "3s", "rate": 3}]}, "rates of their own"),
        ({"phases": [{"for": "3s", "rate": 0}]}, "at least one needs a rate"),
        ({"traffic": [{"titles": 3}, {"titles": 4}]}, "name of its own"),
        ({"traffic": [{"endpoint": "GET /a", "units": 5}]}, "units: GET /a sends no body"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(values, reason):
    with pytest.raises(PlanError, match=reason):
        make_plan({"url": URL, **values})


@pytest.mark.parametrize(
    ("scenario", "options", "reason"),
    [
        (
            None,
            {"trace": "t", "duration": "10s"},
            r"duration \(--duration\): it has no effect together with trace",
        ),
        ("spike", {"rate_to": 100}, "rate_to .*phases have rates of their own"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_by_name(scenario, options, reason):
    with pytest.raises(PlanError, match=reason):
        combined(scenario, {"url": URL, **options})


def test_options_replace_the_rates_and_times_of_a_scenario(tmp_path):
    assert combined("steady", {"url": URL, "trace": "t"}).arrivals == "trace"
    assert combined("spike", {"url": URL, "trace": "t"}).phases == ()
    stepped = combined("spike", {"url": URL, "rate": 10, "rate_to": 40})
    assert (stepped.arrivals, stepped.rate_to, stepped.phases) == ("step", 40, ())
    ramp = tmp_path / "ramp.yaml"
    ramp.write_text("{arrivals: ramp, rate: 10, rate_to: 40, duration: 20s}")
    assert combined(str(ramp), {"url": URL, "rate_to": 90}).rate_to == 90
    for options in ({"arrivals": "poisson"}, {"trace": "t"}):
        assert combined(str(ramp), {"url": URL, **options}).rate_to is None


def test_a_number_of_a_scenario_is_read_as_a_person_reads_it(tmp_path):
    """YAML 1.1 reads 010 as 8."""
    scenario = tmp_path / "steady.yaml"
    scenario.write_text("rate: 010")
    assert make_plan({"url": URL, **read_scenario(str(scenario))}).rate == 10


def test_a_password_in_the_address_is_refused_and_not_repeated():
    """The plan, with its address, goes into the report."""
    with pytest.raises(PlanError, match="must not hold a user name or password") as refused:
        make_plan({"url": "ftp://s3cret@127.0.0.1"})
    assert "s3cret" not in str(refused.value)


def test_a_scenario_with_a_trace_needs_no_arrivals_and_finds_its_files_beside_it(tmp_path):
    scenario = tmp_path / "replay.yaml"
    scenario.write_text("{trace: times.csv, pairs: /texts.csv}")
    plan = make_plan({**read_scenario(str(scenario)), "url": URL})
    assert (plan.arrivals, plan.trace, plan.pairs) == ("trace", tmp_path / "times.csv", Path("/texts.csv"))


@pytest.mark.parametrize(
    ("text", "limits", "errors"),
    [("p99=100ms", {99: 100}, 0.001), ("p50=20ms, p99.9=1s,errors=1%", {50: 20, 99.9: 1000}, 0.01)],
)
def test_objectives_read_as_people_write_them(text, limits, errors):
    parsed = judging.parse(text)
    assert parsed.limits_ms == pytest.approx(limits)
    assert parsed.errors == pytest.approx(errors)


def test_an_objective_that_a_timeout_cannot_miss_is_refused():
    """A request that is given up counts with little more than the timeout, which is within such a limit."""
    plan = make_plan({"url": URL, "timeout": 10, "slo": "p50=1s,p99=11s"})
    with pytest.raises(PlanError, match=r"slo: p99=11s is above the timeout of 10 s.*--timeout"):
        judging.objective_of(plan)
    assert judging.objective_of(plan.changed(timeout="11s")).bound_ms == 11_000
    assert judging.objective_of(plan.changed(slo=None)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "errors=1%", "p99", "p99=fast", "p101=3ms", "errors=200%,p50=1s", "mean=3ms"),
        *("unreranked=1%", "p50=1s,unreranked=200%", "p50=1s,unreranked=few"),
        *("p50=1s,errors=nan%", "p50=1s,errors=nan", "p50=1s,errors=5", "p50=1s,errors=-1%"),
    ],
)
def test_a_wrong_objective_is_refused(text):
    with pytest.raises(PlanError, match="--slo"):
        judging.parse(text)
