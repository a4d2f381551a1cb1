"""How many times as fast one computation is as another, from rounds in which they took turns."""

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.quality.bootstrap import Interval

MIN_ROUNDS = 6
"""With fewer rounds than this even the lowest and the highest ratio are no 95 % interval of the median."""


def speedup(before: Floats, after: Floats) -> Interval:
    """Return the median of before / after with its 95 % interval, which assumes nothing about their spread.

    before, after: (rounds,) seconds. The ends are ratios of single rounds (Conover 1999, §3.2), and nan if
    there are fewer rounds than MIN_ROUNDS.
    """
    from scipy.stats import quantile_test  # every command imports this module

    ratios = before / after
    ends = quantile_test(ratios, p=0.5).confidence_interval(0.95)
    return Interval(float(np.median(ratios)), float(ends.low), float(ends.high))
