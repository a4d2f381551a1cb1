"""The answers of the experiment routes, as plain values. None means that a value is not known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from pydantic import TypeAdapter

from headroom.service.descriptions import documented
from headroom.service.experiments.buckets import Span
from headroom.service.experiments.definition import Kind
from headroom.service.experiments.events import Action
from headroom.service.experiments.state import Status

Decision = Literal[
    "better",  # than control
    "good_enough",  # worse by less than the margin, or not worse
    "worse_within_margin",  # worse, but by less than the margin
    "worse",  # than control; if there is a margin, it is not yet known whether by more than it
    "too_bad",  # worse by more than the margin
    "undecided",
]
Recommendation = Literal["ship", "stop", "wait", "invalid"]


@documented
@dataclass(frozen=True, slots=True)
class SampleRatio:
    """The check that the arms have the shares of units that they should have."""

    sequential_p: float
    """p-value that is valid for any number of looks; 1 if nothing is compared."""
    alarm: bool
    """Whether `sequential_p` is so small that no result can be trusted."""
    text: str
    """The result as a sentence."""
    units: Mapping[str, int]
    """Units of the arms compared: those not rolled back."""


@documented
@dataclass(frozen=True, slots=True)
class Effect:
    """An arm's metric minus control's. The intervals are those of the confidence sequence.

    In an interleaving experiment, the difference is the preference for the arm, and nothing is relative.
    """

    arm: str
    """The arm's name."""
    metric: str
    """The metric's name in the config."""
    difference: float | None
    """The arm's value minus control's, in the metric's unit."""
    low: float | None
    """Lower end of the difference's interval."""
    high: float | None
    """Upper end of the difference's interval."""
    relative: float | None
    """The difference as a share of control's value."""
    relative_low: float | None
    """Lower end of the relative difference's interval."""
    relative_high: float | None
    """Upper end of the relative difference's interval."""


@documented
@dataclass(frozen=True, slots=True)
class Preference:
    """Which arm's titles the units clicked. Above 0, the treatment is preferred."""

    metric: str
    """The metric's name in the config."""
    estimate: float
    """Mean over units of (clicks on the treatment's titles − on control's) / (both); 0 without any."""
    interval: tuple[float, float]
    """Both ends of the estimate's confidence sequence, in [−1, 1]; all of it for fewer than 30 units."""
    p: float
    """Anytime-valid p-value of the hypothesis that no arm is preferred."""
    units: int
    """Units that clicked a title that belongs to an arm."""
    impressions: int
    """Lists shown."""
    differing: int
    """Lists in which the arms' orders differ: a title belongs to one of them."""
    viewers: int
    """Units that the lists were shown to."""
    wins: int
    """Units that clicked more of the treatment's titles than of control's."""
    losses: int
    """Units that clicked more of control's titles than of the treatment's."""
    ties: int
    """Units that clicked as many of each."""


@documented
@dataclass(frozen=True, slots=True)
class MetricReport(Effect):
    """An arm's metric against control's, with the verdict."""

    kind: str
    """`mean`, `proportion`, `ratio` or `preference`."""
    units: int
    """Units of the arm that were exposed while it ran; of a preference, those that clicked a title of one
    arm."""
    control_units: int
    """Units of control that were exposed while the arm ran; of a preference, the same units."""
    value: float | None
    """The arm's value; null for a preference."""
    control_value: float | None
    """Control's value; null for a preference."""
    p_value: float | None
    """Anytime-valid p-value of the hypothesis that there is no difference, times the number of arms
    compared with control. It is below `alpha` if the interval excludes 0. Null for a ratio that divides by
    0."""
    margin: float | None
    """How much worse is still good enough, from the config."""
    margin_relative: bool
    """Whether the margin is a share of control's value."""
    better: Literal["higher", "lower"]
    """Whether higher or lower values are better."""
    decision: Decision
    """The verdict that follows from the interval and the margin."""
    text: str
    """The result as a sentence."""
    preference: Preference | None = None
    """Whose titles the units clicked; null unless the experiment interleaves."""


def shows_share(relative_low: float | None, margin: float | None, *, is_relative: bool) -> bool:
    """Return whether a change is shown as a share of control's value.

    It is if this share has an interval, which begins at `relative_low`, and the margin is a share, too.
    """
    return relative_low is not None and (margin is None or is_relative)


@documented
@dataclass(frozen=True, slots=True)
class ShadowMeasure:
    """The mean over units of a paired measure, with the interval of its confidence sequence.

    A unit's value is the mean over its requests; a request without a unit stands for a unit of its own.
    """

    requests: int
    """Requests that were scored under both arms."""
    units: int
    """Units that sent them."""
    mean: float
    """Mean over those units."""
    low: float | None
    """Lower end of the mean's interval; null for times."""
    high: float | None
    """Upper end of the mean's interval; null for times."""


@documented
@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Requests scored under both arms. Score differences are arm minus control, of scores from 0 to 1."""

    measures: Mapping[str, ShadowMeasure]
    """By name. `ndcg_loss` is control's NDCG@10 minus the arm's."""


@documented
@dataclass(frozen=True, slots=True)
class ArmReport:
    """One arm against control."""

    arm: str
    """The arm's name."""
    metrics: Sequence[MetricReport]
    """The metrics in the config's order."""
    shadow: ShadowReport | None
    """The paired comparison; null without shadow traffic."""


@documented
@dataclass(frozen=True, slots=True)
class Look:
    """The effects at a past time: those of a report of all facts up to it."""

    time: float
    """Seconds since the epoch, UTC."""
    effects: Sequence[Effect]
    """By arm, then in the config's order."""


@documented
@dataclass(frozen=True, slots=True)
class Report:
    """The analysis of an experiment at one look. The first metric decides."""

    experiment: str
    """The experiment's name."""
    time: float
    """When the report was made, in seconds since the epoch, UTC."""
    control: str
    """The arm that the others are measured against."""
    alpha: float
    """Share of experiments without a difference in which some look finds one."""
    planned_units: int
    """Units for which the intervals are narrowest."""
    exposures: Mapping[str, int]
    """Units exposed, by arm; `interleaved` for those that see both."""
    sample_ratio: SampleRatio
    """Whether the arms have the units that they should have."""
    arms: Sequence[ArmReport]
    """All arms except control."""
    recommendation: Recommendation
    """`ship` an arm, `stop`, `wait`, or `invalid` if the sample ratio is off, the experiment did not begin
    with this config, or its outcomes were deleted without keeping the last report."""
    text: str
    """The recommendation and its reason."""
    looks: Sequence[Look]
    """Earlier times, evenly spaced. All intervals hold together, as a confidence sequence does."""
    retention: str | None = None
    """What was deleted `outcome_days` after the end, and when this report was made then. Null if nothing."""
    schema: int = 1
    """Version of this format."""
    in_both_arms: int = 0
    """Units that were sent to more than one arm, which are left out everywhere else."""
    end: float | None = None
    """When the experiment ended, in seconds since the epoch, UTC; null while it runs. Charts end here."""
    unmatched: Mapping[str, int] = field(default_factory=dict)
    """Clicks that count for nobody, by reason: `impression` (on no stored list), `unit` (on another unit's),
    `index` (on a title that was not shown)."""

    @property
    def preference(self) -> Preference | None:
        """The preference by the first metric; None unless the experiment interleaves."""
        metrics = self.arms[0].metrics if self.arms else []
        return metrics[0].preference if metrics else None

    def as_json(self) -> str:
        """Return all values as JSON."""
        return _reports().dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "Report":
        """Return the report that `as_json` wrote. Raises ValueError if it lacks a value of this release."""
        return _reports().validate_json(text)


@cache
def _reports() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


@documented
@dataclass(slots=True)
class ArmView:
    """The present state of one arm."""

    name: str
    """The name in the config."""
    variant: str
    """The variant that scores for the arm's units."""
    weight: int
    """The arm's share of the units, relative to the other arms' weights."""
    control: bool
    """Whether the other arms are compared with this one."""
    exposures: int
    """Units exposed so far, as counted in the database. Units of an interleaved list count for both arms."""


@documented
@dataclass(slots=True)
class GuardrailView:
    """One arm's requests of the last minute, which the guardrails judge."""

    arm: str
    """The arm's name."""
    replicas: int
    """Replicas that served these requests. The answering one alone while the database is down."""
    requests: int
    """Requests of the last minute."""
    error_rate: float | None
    """Share of the requests that the arm's variant failed."""
    slow_rate: float | None
    """Share of the requests that took longer than `p99_ms`."""
    score_shift: float | None
    """Population stability index against control."""


@documented
@dataclass(slots=True)
class ExperimentView:
    """The present state of one experiment."""

    name: str
    """The name."""
    kind: Kind
    """`ab`: each unit gets one arm. `interleave`: each list is drawn from both arms' rankings."""
    in_config: bool
    """Whether the config declares it; if not, it is paused or over, or was started over HTTP."""
    status: Status
    """`pending`: its start is not recorded yet; `rolled_back`: no treatment arm is left; `paused`: the config
    keeps it from running, and the field of this name says why."""
    paused: str | None
    """What in the config keeps it from running, or its shipped arm from everybody."""
    traffic: float
    """Share of each arm's units that is exposed now."""
    started: float | None
    """Start in seconds since the epoch, UTC; null before the start."""
    slots: Span
    """The part of the 10,000 slots: first, and last plus one."""
    shadow: float
    """Share of requests that are scored under every arm."""
    arms: list[ArmView]
    """The arms in the config's order."""
    rolled_back: list[str]
    """Arms that were rolled back to control."""
    shipped: str | None
    """The arm whose variant everybody gets."""
    sample_ratio_p: float | None
    """Anytime-valid p of the sample-ratio check; null without an exposure, or if lists are interleaved."""
    guardrails: list[GuardrailView]
    """What the guardrails judge, by arm."""


@documented
@dataclass(slots=True)
class ExperimentsView:
    """The experiments of the live config, and those that were started without a file."""

    config_version: str
    """Changes with the live config."""
    experiments: list[ExperimentView]
    """The experiments of the config in its order, then the others, oldest first."""


@documented
@dataclass(slots=True)
class ExperimentDetail(ExperimentView):
    """One experiment with its log and its analysis."""

    history: list[Action]
    """The actions on the experiment, oldest first."""
    report: Report | None
    """The analysis so far; null while the database is down."""
    preference: Preference | None
    """The preference by the first metric; null while the database is down, and unless the experiment
    interleaves."""
