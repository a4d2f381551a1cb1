"""The answers of the experiment routes, as plain values. None means that a value is not known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from service.experiments.events import Action
from service.experiments.fields import says
from service.experiments.state import Status

Decision = Literal[
    "better",  # than control
    "good_enough",  # worse by less than the margin, or not worse
    "worse_within_margin",  # worse, but by less than the margin
    "worse",  # than control; if there is a margin, it is not yet known whether by more than it
    "too_bad",  # worse by more than the margin
    "undecided",
]
Recommendation = Literal["ship", "stop", "wait", "invalid"]


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """The check that the arms have the shares of units that they should have."""

    sequential_p: Annotated[float, says("p-value that is valid for any number of looks.")]
    alarm: Annotated[bool, says("Whether `sequential_p` is so small that no result can be trusted.")]
    text: Annotated[str, says("The result as a sentence.")]
    units: Annotated[Mapping[str, int], says("Units of the arms compared: those not rolled back.")]


@dataclass(frozen=True, slots=True)
class MetricReport:
    """An arm's metric against control's. The intervals are those of the confidence sequence."""

    arm: Annotated[str, says("The arm's name.")]
    metric: Annotated[str, says("The metric's name in the config.")]
    kind: Annotated[str, says("`mean`, `proportion` or `ratio`.")]
    units: Annotated[int, says("Units of the arm that were exposed while it ran.")]
    control_units: Annotated[int, says("Units of control that were exposed while the arm ran.")]
    value: Annotated[float | None, says("The arm's value.")]
    control_value: Annotated[float | None, says("Control's value.")]
    difference: Annotated[float | None, says("The arm's value minus control's, in the metric's unit.")]
    low: Annotated[float | None, says("Lower end of the difference's interval.")]
    high: Annotated[float | None, says("Upper end of the difference's interval.")]
    relative: Annotated[float | None, says("The difference as a share of control's value.")]
    relative_low: Annotated[float | None, says("Lower end of the relative difference's interval.")]
    relative_high: Annotated[float | None, says("Upper end of the relative difference's interval.")]
    p_value: Annotated[
        float,
        says(
            "Anytime-valid p-value of the hypothesis that there is no difference, times the number of arms "
            "compared with control. It is below `alpha` if the interval excludes 0."
        ),
    ]
    margin: Annotated[float | None, says("How much worse is still good enough, from the config.")]
    margin_relative: Annotated[bool, says("Whether the margin is a share of control's value.")]
    better: Annotated[Literal["higher", "lower"], says("Whether higher or lower values are better.")]
    variance_explained: Annotated[float | None, says("Share of the variance that the covariate explains.")]
    decision: Annotated[Decision, says("The verdict that follows from the interval and the margin.")]
    text: Annotated[str, says("The result as a sentence.")]


@dataclass(frozen=True, slots=True)
class ShadowMeasure:
    """The mean over units of a paired measure, with the interval of its confidence sequence.

    A unit's value is the mean over its requests; a request without a unit stands for a unit of its own.
    """

    requests: Annotated[int, says("Requests that were scored under both arms.")]
    units: Annotated[int, says("Units that sent them.")]
    mean: Annotated[float, says("Mean over those units.")]
    low: Annotated[float | None, says("Lower end of the mean's interval; null for times.")]
    high: Annotated[float | None, says("Upper end of the mean's interval; null for times.")]


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Requests scored under both arms. Score differences are arm minus control, of scores from 0 to 1."""

    measures: Annotated[
        Mapping[str, ShadowMeasure], says("By name. `ndcg_loss` is control's NDCG@10 minus the arm's.")
    ]
    text: Annotated[str, says("The result as a sentence.")]


@dataclass(frozen=True, slots=True)
class ArmReport:
    """One arm against control."""

    arm: Annotated[str, says("The arm's name.")]
    metrics: Annotated[Sequence[MetricReport], says("The metrics in the config's order.")]
    shadow: Annotated[ShadowReport | None, says("The paired comparison; null without shadow traffic.")]


@dataclass(frozen=True, slots=True)
class Report:
    """The analysis of an experiment at one look. The first metric decides."""

    experiment: Annotated[str, says("The experiment's name.")]
    time: Annotated[float, says("When the report was made, in Unix seconds.")]
    control: Annotated[str, says("The arm that the others are measured against.")]
    alpha: Annotated[float, says("Share of experiments without a difference in which some look finds one.")]
    planned_units: Annotated[int, says("Units for which the intervals are narrowest.")]
    exposures: Annotated[Mapping[str, int], says("Units exposed, by arm.")]
    sample_ratio: Annotated[SampleRatio, says("Whether the arms have the units that they should have.")]
    arms: Annotated[Sequence[ArmReport], says("All arms except control.")]
    recommendation: Annotated[
        Recommendation,
        says(
            "`ship` an arm, `stop`, `wait`, or `invalid` if the sample ratio is off or the experiment did "
            "not begin with this config."
        ),
    ]
    text: Annotated[str, says("The recommendation and its reason.")]
    schema: Annotated[int, says("Version of this format.")] = 1


@dataclass(frozen=True, slots=True)
class Look:
    """The metrics at one time."""

    time: Annotated[float, says("Seconds since the epoch, UTC.")]
    metrics: Annotated[Sequence[MetricReport], says("By arm, then in the config's order.")]


@dataclass(frozen=True, slots=True)
class Course:
    """An experiment's intervals over time. All of them hold together, as a confidence sequence does."""

    experiment: Annotated[str, says("The experiment's name.")]
    looks: Annotated[Sequence[Look], says("In order of time, evenly spaced.")]
    complete: Annotated[bool, says("Whether all looks are there; ask again where the database is slow.")]


@dataclass(slots=True)
class ArmView:
    """The present state of one arm."""

    name: Annotated[str, says("The name in the config.")]
    variant: Annotated[str, says("The variant that scores for the arm's units.")]
    weight: Annotated[int, says("The arm's share of the units, relative to the other arms' weights.")]
    control: Annotated[bool, says("Whether the other arms are compared with this one.")]
    exposures: Annotated[int, says("Units exposed so far, as counted in the database.")]


@dataclass(slots=True)
class GuardrailView:
    """One arm's requests in the guardrails' window on the answering replica."""

    arm: Annotated[str, says("The arm's name.")]
    requests: Annotated[int, says("Requests in the window.")]
    error_rate: Annotated[float | None, says("Share of the requests that the arm's variant failed.")]
    slow_rate: Annotated[float | None, says("Share of the requests that took longer than `p99_ms`.")]
    score_shift: Annotated[float | None, says("Population stability index against control.")]


@dataclass(slots=True)
class ExperimentView:
    """The present state of one experiment."""

    name: Annotated[str, says("The name in the config.")]
    status: Annotated[
        Status,
        says(
            "`pending`: its start is not recorded yet; `rolled_back`: no treatment arm is left; "
            "`changed`: the config's salt or arms are not those it started with, so it does not run."
        ),
    ]
    traffic: Annotated[float, says("Share of each arm's units that is exposed now.")]
    started: Annotated[float | None, says("Start in seconds since the epoch, UTC; null before the start.")]
    slots: Annotated[tuple[int, int], says("The part of the 10,000 slots: first, and last plus one.")]
    shadow: Annotated[float, says("Share of requests that are scored under every arm.")]
    arms: Annotated[list[ArmView], says("The arms in the config's order.")]
    rolled_back: Annotated[list[str], says("Arms that were rolled back to control.")]
    shipped: Annotated[str | None, says("The arm that everybody gets.")]
    sample_ratio_p: Annotated[
        float | None,
        says("Anytime-valid p of the sample-ratio check; null without an exposure."),
    ]
    guardrails: Annotated[list[GuardrailView], says("The windows on the answering replica, by arm.")]


@dataclass(slots=True)
class ExperimentsView:
    """The experiments of the live config."""

    config_version: Annotated[str, says("Changes with the live config.")]
    experiments: Annotated[list[ExperimentView], says("The experiments in the config's order.")]


@dataclass(slots=True)
class ExperimentDetail(ExperimentView):
    """One experiment with its log and its analysis."""

    history: Annotated[list[Action], says("The actions on the experiment, oldest first.")]
    report: Annotated[Report | None, says("The analysis so far; null while the database is down.")]
