"""Simulates whole experiments, many at once, to see what they conclude and how often they are wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headroom.service.experiments.estimates import Boundary, Floats, Moments, contrast, estimate

CHUNK_UNITS = 500_000
"""Units held in memory at a time."""

NEVER = -1


@dataclass(frozen=True, slots=True)
class Units:
    """The numbers of simulated units, (experiments, units) each; None for a number that the metric lacks."""

    value: Floats
    denominator: Floats | None = None
    covariate: Floats | None = None


Draw = Callable[[NDArray[np.bool_], np.random.Generator], Units]
"""Draws units for a boolean array that says which units are in the arm."""


@dataclass(frozen=True, slots=True)
class Design:
    """The design of an experiment with control and one arm.

    units: units of both arms. every: units between two looks. share: the arm's share of the units.
    margin: how much worse is good enough, as a share of control's value; None asks whether there is a
        difference.
    """

    units: int
    every: int = 100
    share: float = 0.5
    alpha: float = 0.05
    margin: float | None = None
    sign: int = 1
    ratio: bool = False
    adjusted: bool = False


class Conclusions(NamedTuple):
    """Conclusions by experiment, (experiments,): the units at the first look that draws it, or NEVER.

    good: better, or worse by less than the margin. bad: worse by more than the margin (without one: worse).
    different: the interval excludes 0. missed: the interval excludes the true difference.
    low, relative_low, relative_high: ends of the intervals at the last look.
    """

    good: NDArray[np.int64]
    bad: NDArray[np.int64]
    different: NDArray[np.int64]
    missed: NDArray[np.int64]
    low: Floats
    relative_low: Floats
    relative_high: Floats


def simulate(design: Design, draw: Draw, *, experiments: int, truth: float, seed: int = 0) -> Conclusions:
    """Run `experiments` experiments to the end, with a look every `every` units.

    truth: the true difference.
    """
    rng = np.random.default_rng(seed)
    at_once = max(1, CHUNK_UNITS // design.units)
    parts = [
        _run(design, draw, min(at_once, experiments - start), truth, rng)
        for start in range(0, experiments, at_once)
    ]
    return Conclusions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _run(design: Design, draw: Draw, experiments: int, truth: float, rng: np.random.Generator) -> Conclusions:
    looks = max(1, design.units // design.every)
    treated = rng.random((experiments, looks * design.every)) < design.share
    arms = look_moments(draw(treated, rng), treated, looks)
    pooled = arms[0] + arms[1]
    control, arm, overall = (
        estimate(part, pooled, ratio=design.ratio, adjusted=design.adjusted) for part in (*arms, pooled)
    )
    boundary = Boundary(design.alpha, design.units)
    at_looks = contrast(control, arm, overall, boundary)
    low, high = at_looks.low, at_looks.high
    if design.margin is not None:
        gap = contrast(control, arm, overall, boundary, ratio=1 - design.sign * design.margin)
        low, high = gap.low, gap.high
    worst, best = (low, high) if design.sign > 0 else (-high, -low)
    units = (np.arange(looks) + 1) * design.every

    def first(condition: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.where(condition.any(1), units[condition.argmax(1)], NEVER)

    return Conclusions(
        good=first(worst > 0),
        bad=first(best < 0),
        different=first((at_looks.low > 0) | (at_looks.high < 0)),
        missed=first((at_looks.low > truth) | (at_looks.high < truth)),
        low=at_looks.low[:, -1],
        relative_low=at_looks.relative_low[:, -1],
        relative_high=at_looks.relative_high[:, -1],
    )


def look_moments(units: Units, treated: NDArray[np.bool_], looks: int) -> tuple[Moments, Moments]:
    """Return the moments of control and of the arm at every look, (experiments, looks).

    treated: (experiments, units); the units are a multiple of the looks.
    """
    experiments, number = treated.shape
    shape = (experiments, looks, number // looks)
    weight = treated.reshape(shape).astype(np.float64)
    centre = np.zeros(3)
    shifted: dict[int, Floats] = {}
    for index, column in enumerate((units.value, units.denominator, units.covariate)):
        if column is not None:
            if not np.isin(column, (0.0, 1.0)).all():  # sums of these are exact, so nobody converted is 0
                centre[index] = column.mean()
            shifted[index] = (column - centre[index]).reshape(shape)
    sums = np.zeros((2, experiments, looks, 3))  # of all units, of the arm's
    products = np.zeros((2, experiments, looks, 3, 3))
    for i, left in shifted.items():
        of_treated = left * weight
        sums[0, ..., i], sums[1, ..., i] = left.sum(2), of_treated.sum(2)
        for j, right in shifted.items():
            if j >= i:
                for part, column in enumerate((left, of_treated)):
                    product = np.einsum("elu,elu->el", column, right)
                    products[part, ..., i, j] = products[part, ..., j, i] = product
    counts = np.stack([np.full((experiments, looks), float(shape[2])), weight.sum(2)])
    totals = [np.cumsum(part, axis=2) for part in (counts, sums, products)]
    treated_moments = _from_sums(totals[0][1], totals[1][1], totals[2][1], centre)
    rest = [part[0] - part[1] for part in totals]
    return _from_sums(rest[0], rest[1], rest[2], centre), treated_moments


def _from_sums(units: Floats, sums: Floats, products: Floats, centre: Floats) -> Moments:
    """The moments from sums over units of v − centre and of its products."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = np.where(units[..., None] > 0, sums / units[..., None], 0.0)
    return Moments(units, shift + centre, products - sums[..., :, None] * shift[..., None, :])
