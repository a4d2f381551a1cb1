"""The schedule: seeded, ahead of time, without drift, in bounded memory."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.loadtest import arrivals
from headroom.loadtest.plan import Plan, PlanError, make_plan


def plan(**values) -> Plan:
    return make_plan({"url": "http://127.0.0.1:1", "warmup": 0, **values})


def times(**values) -> np.ndarray:
    return np.concatenate([*arrivals.chunks(plan(**values)), np.empty(0)])


def test_constant_arrivals_do_not_drift_over_hours():
    chunk = next(
        itertools.islice(arrivals.chunks(plan(arrivals="constant", rate=300, duration="8h")), 20_000, None)
    )
    first = 20_000 * arrivals.CHUNK
    assert np.abs(chunk - np.arange(first, first + arrivals.CHUNK) / 300).max() < 1e-9


def test_a_year_of_a_million_a_second_starts_at_once_and_takes_one_chunk_of_memory():
    chunks = arrivals.chunks(plan(rate=1e6, duration="8760h"))
    assert all(len(chunk) <= arrivals.CHUNK for chunk in itertools.islice(chunks, 10))


def test_poisson_arrivals_are_poisson():
    gaps = np.diff(times(rate=100, duration=1000))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() == pytest.approx(0.01, rel=0.02)  # exponential: mean and deviation are the same
    assert np.quantile(gaps, 0.5) == pytest.approx(0.01 * np.log(2), rel=0.03)


def test_a_ramp_rises_evenly():
    at = times(arrivals="ramp", rate=10, rate_to=190, duration=100)
    counts, _ = np.histogram(at, bins=[0, 25, 50, 75, 100])
    assert counts == pytest.approx([812, 1937, 3062, 4187], rel=0.1)


def test_steps_keep_their_rates_and_their_ends():
    at = times(arrivals="step", rate=100, rate_to=300, duration=50)
    counts, _ = np.histogram(at, bins=[0, 10, 20, 30, 40, 50])
    assert counts == pytest.approx([1000, 1500, 2000, 2500, 3000], rel=0.1)
    phases = [{"for": "10s", "rate": 20}, {"for": "5s", "rate": 0}, {"for": "10s", "rate": 20, "to": 40}]
    spike = times(arrivals="constant", phases=phases)
    assert np.histogram(spike, bins=[0, 10, 15, 25])[0].tolist() == [200, 0, 300]
    assert spike[200] == pytest.approx(15)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 20), st.floats(0, 500), st.none() | st.floats(0, 500)),
        min_size=1,
        max_size=5,
    ).filter(lambda phases: any(rate or to for _, rate, to in phases)),
    st.sampled_from(["poisson", "constant"]),
    st.floats(0, 5),
)
def test_any_schedule_ascends_ends_in_time_and_has_about_the_expected_number(phases, kind, warmup):
    wanted = plan(
        arrivals=kind, phases=[{"for": s, "rate": r, "to": to} for s, r, to in phases], warmup=warmup, seed=3
    )
    at = np.concatenate([*arrivals.chunks(wanted), np.empty(0)])
    assert np.all(np.diff(at) >= 0)
    assert np.all((at >= 0) & (at <= warmup + arrivals.duration(wanted) + 1e-6))
    measured = int((at >= warmup).sum())
    assert measured == arrivals.count(wanted)
    expected = arrivals.expected(wanted)
    assert abs(measured - expected) <= (2 if kind == "constant" else 6 * expected**0.5 + 6)


def test_a_trace_is_replayed_from_its_first_time(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("1700000000.5\n1700000001.0\n# a break\n\n1700000004.25\n", "utf-8-sig")
    assert times(arrivals="trace", trace=trace).tolist() == [0, 0.5, 3.75]
    assert arrivals.duration(plan(arrivals="trace", trace=trace)) == 3.75


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no times"),
        ("1\n3\n2\n", "backwards"),
        ("0\ninf\n", "finite"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_reason(tmp_path, text, reason):
    trace = tmp_path / "trace"
    trace.write_text(text)
    with pytest.raises(PlanError, match=reason):
        list(arrivals.chunks(plan(arrivals="trace", trace=trace)))
