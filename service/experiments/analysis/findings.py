"""The parts of a report, as plain values that become JSON. None means that a value is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from service.experiments.analysis.verdicts import Decision


@dataclass(frozen=True, slots=True)
class EpochRatio:
    """The units that are compared in one epoch: the time between two actions or changes of the traffic.

    An arm that was away before is compared with control alone.
    """

    traffic: Annotated[float, Field(description="The share of traffic in this epoch.")]
    units: Annotated[
        Mapping[str, int],
        Field(
            description="Units by arm that came for the first time. Control's also count if they return and "
            "had only come while the other arm was away."
        ),
    ]
    expected: Annotated[Mapping[str, float], Field(description="Each arm's share of the exposed buckets.")]
    chi_square_p: Annotated[float, Field(description="p-value of a chi-square test, valid for one look.")]
    sequential_p: Annotated[float, Field(description="p-value that is valid for any number of looks.")]


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """The check that the arms have the shares of units that they should have.

    The figures are those of the epoch that raises the alarm, or else those of the last epoch.
    """

    chi_square_p: Annotated[float, Field(description="p-value of a chi-square test, valid for one look.")]
    sequential_p: Annotated[float, Field(description="p-value that is valid for any number of looks.")]
    alarm: Annotated[
        bool, Field(description="Whether `sequential_p` is so small that no result can be trusted.")
    ]
    text: Annotated[str, Field(description="The result as a sentence.")]
    epochs: Annotated[
        Sequence[EpochRatio],
        Field(description="All epochs in their order, with the arms that are not rolled back now."),
    ]


@dataclass(frozen=True, slots=True)
class Uncapped:
    """A metric with `winsorize`, computed without the cap: the raw means and the change between them."""

    cap: Annotated[float, Field(description="A unit's sum above this value counts as this value.")]
    value: Annotated[float | None, Field(description="The arm's raw value.")]
    control_value: Annotated[float | None, Field(description="Control's raw value.")]
    difference: Annotated[float | None, Field(description="The arm's raw value minus control's.")]
    relative: Annotated[float | None, Field(description="The difference as a share of control's raw value.")]
    relative_low: Annotated[
        float | None,
        Field(description="Lower end of the confidence sequence. One huge basket makes it wide."),
    ]
    relative_high: Annotated[float | None, Field(description="Upper end of the confidence sequence.")]


@dataclass(frozen=True, slots=True)
class MetricReport:
    """An arm's metric against control's. The intervals are those of the confidence sequence."""

    metric: Annotated[str, Field(description="The metric's name in the config.")]
    kind: Annotated[str, Field(description="`mean`, `proportion` or `ratio`.")]
    units: Annotated[int, Field(description="Units of the arm that were exposed while it ran.")]
    control_units: Annotated[int, Field(description="Units of control that were exposed while the arm ran.")]
    value: Annotated[float | None, Field(description="The arm's value.")]
    control_value: Annotated[float | None, Field(description="Control's value.")]
    difference: Annotated[
        float | None, Field(description="The arm's value minus control's, in the metric's own unit.")
    ]
    low: Annotated[float | None, Field(description="Lower end of the difference's interval.")]
    high: Annotated[float | None, Field(description="Upper end of the difference's interval.")]
    relative: Annotated[float | None, Field(description="The difference as a share of control's value.")]
    relative_low: Annotated[
        float | None, Field(description="Lower end of the relative difference's interval.")
    ]
    relative_high: Annotated[
        float | None, Field(description="Upper end of the relative difference's interval.")
    ]
    p_value: Annotated[
        float,
        Field(
            description="Anytime-valid p-value of the hypothesis that there is no difference, times the "
            "number of arms compared with control. It is below `alpha` if the interval excludes 0."
        ),
    ]
    margin: Annotated[
        float | None, Field(description="How much worse is still good enough, from the config.")
    ]
    margin_relative: Annotated[
        bool,
        Field(
            description="Whether the margin is a share of control's value, and not in the metric's own unit."
        ),
    ]
    better: Annotated[
        Literal["higher", "lower"], Field(description="Whether higher or lower values are better.")
    ]
    variance_explained: Annotated[
        float | None,
        Field(description="Share of the variance that the covariate explains; null without a covariate."),
    ]
    decision: Annotated[
        Decision, Field(description="The verdict that follows from the interval and the margin.")
    ]
    text: Annotated[str, Field(description="The result as a sentence.")]
    early: Annotated[
        int,
        Field(description="Outcomes of the arm that came before their unit's exposure; they do not count."),
    ] = 0
    control_early: Annotated[int, Field(description="The same of control.")] = 0
    uncapped: Annotated[
        Uncapped | None, Field(description="The result without the cap, for a metric with `winsorize`.")
    ] = None


@dataclass(frozen=True, slots=True)
class ShadowMeasure:
    """The mean over units of a paired measure, with the interval of its confidence sequence.

    A unit's value is the mean over its requests; a request without a unit stands for a unit of its own.
    """

    requests: Annotated[int, Field(description="Requests that were scored under both arms.")]
    units: Annotated[int, Field(description="Units that sent them.")]
    mean: Annotated[float, Field(description="Mean over those units.")]
    low: Annotated[float | None, Field(description="Lower end of the mean's interval.")]
    high: Annotated[float | None, Field(description="Upper end of the mean's interval.")]


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Requests scored under both arms. Score differences are arm minus control, of scores from 0 to 1."""

    pairs: Annotated[int, Field(description="Pairs that were scored under both arms.")]
    abs_delta_p50: Annotated[float | None, Field(description="Median of |score difference|.")]
    abs_delta_p99: Annotated[float | None, Field(description="99th percentile of |score difference|.")]
    measures: Annotated[
        Mapping[str, ShadowMeasure],
        Field(description="Measures by name. `ndcg_loss` is control's NDCG@10 minus the arm's."),
    ]
    text: Annotated[str, Field(description="The result as a sentence.")]


@dataclass(frozen=True, slots=True)
class ArmReport:
    """One arm against control."""

    arm: Annotated[str, Field(description="The arm's name.")]
    metrics: Annotated[Sequence[MetricReport], Field(description="The metrics in the config's order.")]
    shadow: Annotated[
        ShadowReport | None, Field(description="The paired comparison; null without shadow traffic.")
    ]


@dataclass(frozen=True, slots=True)
class Report:
    """The analysis of an experiment at one look. The first metric decides."""

    experiment: Annotated[str, Field(description="The experiment's name.")]
    time: Annotated[float, Field(description="When the report was made, in Unix seconds.")]
    control: Annotated[str, Field(description="The arm that the others are measured against.")]
    alpha: Annotated[
        float, Field(description="Share of experiments without a difference in which some look finds one.")
    ]
    planned_units: Annotated[int, Field(description="Units for which the intervals are narrowest.")]
    exposures: Annotated[Mapping[str, int], Field(description="Units exposed, by arm.")]
    sample_ratio: Annotated[
        SampleRatio, Field(description="Whether the arms have the shares of units that they should have.")
    ]
    arms: Annotated[Sequence[ArmReport], Field(description="All arms except control.")]
    recommendation: Annotated[
        str,
        Field(
            description="`ship` an arm, `stop`, `wait`, or `invalid` if the sample ratio is off or the "
            "experiment did not begin with this config."
        ),
    ]
    text: Annotated[str, Field(description="The recommendation and its reason.")]
    schema: Annotated[int, Field(description="Version of this format.")] = 1
