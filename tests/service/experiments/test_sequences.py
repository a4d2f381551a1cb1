"""Looking at any time must not lie: whole experiments, simulated by the thousand."""

import numpy as np
import pytest
from scipy import integrate, stats

from headroom.service.experiments.estimates import (
    MIN_UNITS,
    Boundary,
    Moments,
    contrast,
    error_of_bounded,
    estimate,
)
from headroom.service.experiments.verdicts import sequential_p
from tests.service.experiments.making import NOBODY, moments_of
from tests.service.experiments.simulation import Design, Draw, Units, simulate

EXPERIMENTS = 2000


def normal(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units(rng.standard_normal(treated.shape))


def clicks(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units((rng.random(treated.shape) < 0.03).astype(np.float64))


def spending(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units(np.exp(1.5 * rng.standard_normal(treated.shape)))


def rate_with_past(treated: np.ndarray, rng: np.random.Generator) -> Units:
    taste, sessions = rng.gamma(2.0, 1.0, treated.shape), 1.0 + rng.poisson(2.0, treated.shape)
    return Units(rng.poisson(taste * sessions).astype(np.float64), sessions, taste)


AA: dict[str, tuple[Design, Draw]] = {
    "normal": (Design(4000), normal),
    "rare clicks": (Design(4000), clicks),
    "heavy tails": (Design(4000), spending),
    "rare clicks in a small arm": (Design(4000, share=0.1), clicks),
    "heavy tails in a small arm": (Design(4000, share=0.1), spending),
    "ratio with CUPED": (Design(2000, ratio=True, adjusted=True, share=0.3), rate_with_past),
}


@pytest.mark.parametrize("case", AA)
def test_2000_experiments_without_effect_are_rarely_called_different(case: str) -> None:
    design, draw = AA[case]
    found = simulate(design, draw, experiments=EXPERIMENTS, truth=0.0, seed=1)
    assert (found.different > 0).mean() <= 0.05
    assert np.array_equal(found.missed, found.different)
    assert np.isfinite(found.low).mean() > 0.95  # and not because there was nothing to see


def test_the_interval_holds_the_truth_at_all_looks_of_19_in_20_experiments() -> None:
    def better(treated: np.ndarray, rng: np.random.Generator) -> Units:
        return Units((rng.random(treated.shape) < 0.2 + 0.05 * treated).astype(np.float64))

    found = simulate(Design(4000, share=0.3), better, experiments=1000, truth=0.05, seed=2)
    assert (found.missed > 0).mean() <= 0.05
    assert (found.different > 0).mean() > 0.5
    assert ((found.relative_low > 0.25) | (found.relative_high < 0.25)).mean() <= 0.05


@pytest.mark.parametrize("rate", [0.02, 0.0015, 0.001])
def test_a_margin_relative_to_nearly_nothing_is_judged(rate: float) -> None:
    """Errors of 0.1 % in control and 2 % in the arm stayed undecided for ever."""

    def errors(treated: np.ndarray, rng: np.random.Generator) -> Units:
        return Units((rng.random(treated.shape) < np.where(treated, rate, 0.001)).astype(np.float64))

    design = Design(10_000, every=500, margin=0.5, sign=-1)
    found = simulate(design, errors, experiments=1000, truth=rate - 0.001, seed=3)
    if rate == 0.02:
        assert (found.bad > 0).all()
        assert not (found.good > 0).any()
    else:
        assert (found.bad > 0).mean() <= 0.025
        assert (found.missed > 0).mean() <= 0.05


def looks_at_mean(values: np.ndarray, every: int) -> tuple[np.ndarray, np.ndarray]:
    """The intervals of a mean after each `every` values, (sequences, looks). values: (sequences, units)."""
    units = np.arange(every, values.shape[1] + 1, every)
    mean = values.cumsum(1)[:, units - 1] / units
    squares = np.square(values).cumsum(1)[:, units - 1] / units
    variance = (squares - mean**2) * units / (units - 1)
    radius = Boundary(0.05, 1000).multiplier(units) * error_of_bounded(units, mean, variance)
    return mean - radius, mean + radius


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("share", [0.002, 0.01, 0.1])
def test_a_rare_large_difference_that_has_not_come_yet_is_not_ruled_out(share: float, spread: float) -> None:
    """A few requests change by 0.5 and the others hardly or not at all: few intervals ever miss the mean."""
    rng = np.random.default_rng(5)
    values = rng.normal(0, spread, (400, 3000)) + 0.5 * (rng.random((400, 3000)) < share)
    low, high = looks_at_mean(values, 30)
    assert ((low > 0.5 * share) | (high < 0.5 * share)).any(1).mean() <= 0.05
    assert not (low == high).any()


def test_the_boundary_is_the_mixture_of_the_paper() -> None:
    """Robbins' martingale, integrated numerically, is 1/α where the estimate is on the interval's end."""
    boundary = Boundary(0.05, 500)
    for units in (40, 500, 20_000):
        total = float(boundary.multiplier(units)) * np.sqrt(units)  # of units standard normal summands
        rho = np.sqrt(boundary.rho_squared)
        peak = total / (units + 1 / rho**2)
        reach = 12 / np.sqrt(units + 1 / rho**2)
        mixture, _ = integrate.quad(
            lambda m, s=total, t=units, r=rho: np.exp(m * s - m**2 * t / 2) * stats.norm.pdf(m, scale=r),
            peak - reach,
            peak + reach,
        )
        assert mixture == pytest.approx(1 / 0.05, rel=1e-6)
        assert boundary.p_value(boundary.multiplier(units), units) == pytest.approx(0.05)


def arm(units: int, rng: np.random.Generator, mean: float = 5.0) -> Moments:
    return moments_of(rng.normal(mean, 1.0, units))


def test_too_little_data_gives_no_interval() -> None:
    rng = np.random.default_rng(4)
    for few in (0, 1, MIN_UNITS - 1):
        small = arm(few, rng) if few else NOBODY
        large = arm(500, rng)
        everybody = small + large
        parts = [estimate(part, everybody) for part in (large, small, everybody)]
        found = contrast(parts[0], parts[1], parts[2], Boundary(0.05, 1000))
        assert np.isnan(found.low)
        assert np.isnan(found.relative_high)
        assert found.p_value == 1.0
    constant = [estimate(moments_of(np.ones(100)), moments_of(np.ones(100))) for _ in range(3)]
    assert np.isnan(contrast(constant[0], constant[1], constant[2], Boundary(0.05, 1000)).low)


def test_a_relative_margin_is_judged_by_the_interval_that_is_shown() -> None:
    """Fieller: r is inside exactly when arm − r·control is within the interval's width of 0."""
    rng = np.random.default_rng(5)
    parts = arm(400, rng, 5.0), arm(300, rng, 5.2)
    everybody = parts[0] + parts[1]
    control, treated, overall = (estimate(part, everybody) for part in (*parts, everybody))
    boundary = Boundary(0.05, 1000)
    found = contrast(control, treated, overall, boundary)
    spread = overall.variance * overall.units
    for end in (found.relative_low, found.relative_high):
        ratio = 1 + end
        error = np.sqrt(spread / treated.units + ratio**2 * spread / control.units)
        own = np.sqrt(treated.variance + ratio**2 * control.variance)
        gap = abs(treated.value - ratio * control.value) / boundary.multiplier(700)
        assert gap == pytest.approx(error, rel=1e-6) or gap == pytest.approx(own, rel=1e-6)
    assert found.relative_low < found.relative < found.relative_high
    for end, of_gap in ((found.relative_low, "low"), (found.relative_high, "high")):
        gap = contrast(control, treated, overall, boundary, ratio=float(1 + end))
        assert getattr(gap, of_gap) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "shares"),
    [
        ({"a": 5100, "b": 4900}, {"a": 0.5, "b": 0.5}),
        ({"a": 70, "b": 20, "c": 10}, {"a": 0.5, "b": 0.3, "c": 0.2}),
    ],
)
def test_the_sample_ratio_p_value_is_that_of_the_mixture(
    counts: dict[str, int], shares: dict[str, float]
) -> None:
    """By densities of scipy; the priors of the docstring are 10 and 1000 times the shares, in equal parts."""
    total = sum(counts.values())
    units = list(counts.values())
    probabilities = np.array(list(shares.values()))
    of_priors = [
        stats.dirichlet_multinomial.pmf(units, weight * probabilities, total) for weight in (10, 1000)
    ]
    plain = stats.multinomial.pmf(units, total, probabilities)
    assert sequential_p(counts, shares) == pytest.approx(min(1, plain / np.mean(of_priors)))
