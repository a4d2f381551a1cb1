"""What a report holds. Plain values throughout, so that it is JSON as it stands; None: cannot be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.experiments.verdicts import Decision


@dataclass(frozen=True, slots=True)
class EpochRatio:
    """Units that came in one epoch: between two actions on the experiment, or changes of its traffic.

    expected: each arm's part of the buckets that were exposed. chi_square_p: for one look; sequential_p: for
    any number of looks.
    """

    traffic: float
    units: Mapping[str, int]
    expected: Mapping[str, float]
    chi_square_p: float
    sequential_p: float


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """Of the epoch that raises the alarm, else of the last one; alarm: by sequential_p.

    epochs: all of them, in their order, with the arms that are not rolled back now.
    """

    chi_square_p: float
    sequential_p: float
    alarm: bool
    text: str
    epochs: Sequence[EpochRatio]


@dataclass(frozen=True, slots=True)
class Uncapped:
    """What a metric with `winsorize` is without it: the raw means, and the change between them.

    cap: units' sums above it count as it. The interval is of the confidence sequence; one huge basket makes
    it wide.
    """

    cap: float
    value: float | None
    control_value: float | None
    difference: float | None
    relative: float | None
    relative_low: float | None
    relative_high: float | None


@dataclass(frozen=True, slots=True)
class MetricReport:
    """An arm's metric against control's; the intervals are of the confidence sequence.

    units, control_units: exposed while the arm ran. variance_explained: by the covariate, as a share;
    p_value: anytime-valid, of no difference. uncapped: of a metric with `winsorize`, without it.
    """

    metric: str
    kind: str
    units: int
    control_units: int
    value: float | None
    control_value: float | None
    difference: float | None
    low: float | None
    high: float | None
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    p_value: float
    margin: float | None
    variance_explained: float | None
    decision: Decision
    text: str
    uncapped: Uncapped | None = None


@dataclass(frozen=True, slots=True)
class ShadowMeasure:
    """The mean over requests of a paired measure, with the interval of its confidence sequence."""

    requests: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Requests scored under both arms. Score differences are arm minus control, of scores from 0 to 1.

    p50, p99: of the |difference| over all pairs; ndcg_loss is control's NDCG@10 minus the arm's.
    """

    pairs: int
    abs_delta_p50: float | None
    abs_delta_p99: float | None
    measures: Mapping[str, ShadowMeasure]
    text: str


@dataclass(frozen=True, slots=True)
class ArmReport:
    arm: str
    metrics: Sequence[MetricReport]
    shadow: ShadowReport | None


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment at one look. The first metric is the one that decides.

    recommendation: `ship` an arm, `stop` (no arm is good enough), `wait`, or `invalid`, where the sample
        ratio is off.
    """

    experiment: str
    time: float
    control: str
    alpha: float
    planned_units: int
    exposures: Mapping[str, int]
    sample_ratio: SampleRatio
    arms: Sequence[ArmReport]
    recommendation: str
    text: str
    schema: int = 1
