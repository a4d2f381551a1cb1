"""The answers of the experiment routes, as plain dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from service.experiments.analysis.findings import Report
from service.experiments.definition.state import Status

UnixSeconds = Annotated[float, Field(description="Seconds since the epoch, UTC.")]


@dataclass(slots=True)
class ArmView:
    """The present state of one arm."""

    name: Annotated[str, Field(description="The name in the config.")]
    variant: Annotated[str, Field(description="The variant that scores for the arm's units.")]
    weight: Annotated[
        int, Field(description="The arm's share of the units, relative to the other arms' weights.")
    ]
    control: Annotated[bool, Field(description="Whether the other arms are compared with this one.")]
    exposures: Annotated[int, Field(description="Units exposed so far, as counted in the database.")]


@dataclass(slots=True)
class GuardrailView:
    """One arm's requests in the guardrails' window on the answering replica."""

    arm: Annotated[str, Field(description="The arm's name.")]
    requests: Annotated[int, Field(description="Requests in the window.")]
    error_rate: Annotated[
        float | None,
        Field(description="Share of the requests that the arm's variant failed; null without requests."),
    ]
    p99_ms: Annotated[
        float | None, Field(description="99th percentile of the time from admission to result.")
    ]
    score_shift: Annotated[float | None, Field(description="Population stability index against control.")]


@dataclass(slots=True)
class ActionView:
    """One entry of an experiment's log."""

    time: UnixSeconds
    kind: Annotated[str, Field(description="`start`, `ramp`, `stop`, `ship`, `rollback` or `reinstate`.")]
    arm: Annotated[str | None, Field(description="The arm that was shipped, rolled back or reinstated.")]
    traffic: Annotated[float | None, Field(description="The traffic after a ramp.")]
    actor: Annotated[str, Field(description="The key's name, `guardrail` or `schedule`.")]
    reason: Annotated[str, Field(description="The guardrail's name, or the person's words.")]
    detail: Annotated[str, Field(description="The guardrail's figures, or the arms and salt at the start.")]


@dataclass(slots=True)
class ExperimentView:
    """The present state of one experiment."""

    name: Annotated[str, Field(description="The name in the config.")]
    status: Annotated[
        Status,
        Field(
            description="`pending`: its start is not recorded yet; `rolled_back`: no treatment arm is left; "
            "`changed`: the config's salt or arms are not those it started with, so it does not run."
        ),
    ]
    traffic: Annotated[float, Field(description="Share of each arm's units that is exposed now.")]
    next_step: Annotated[
        float | None, Field(description="The time of the ramp's next step, in Unix seconds.")
    ]
    started: Annotated[
        float | None, Field(description="Start in seconds since the epoch, UTC; null before the start.")
    ]
    slots: Annotated[
        tuple[int, int],
        Field(description="The experiment's part of the 10,000 slots: first, and last plus one."),
    ]
    where: Annotated[dict[str, Any], Field(description="Attributes that requests must have to take part.")]
    shadow: Annotated[float, Field(description="Share of requests that are scored under every arm.")]
    arms: Annotated[list[ArmView], Field(description="The arms in the config's order.")]
    rolled_back: Annotated[list[str], Field(description="Arms that were rolled back to control.")]
    shipped: Annotated[str | None, Field(description="The arm that everybody gets.")]
    sample_ratio_p: Annotated[
        float | None,
        Field(
            description="Anytime-valid p of the sample-ratio check since the last start, ramp, rollback or "
            "reinstatement; null without an exposure since."
        ),
    ]
    guardrails: Annotated[
        list[GuardrailView], Field(description="The windows on the answering replica, one entry per arm.")
    ]


@dataclass(slots=True)
class ExperimentsView:
    """The experiments of the live config."""

    config_version: Annotated[str, Field(description="Changes with the live config.")]
    state_version: Annotated[int, Field(description="Grows with every action on an experiment.")]
    experiments: Annotated[list[ExperimentView], Field(description="The experiments in the config's order.")]


@dataclass(slots=True)
class ExperimentDetail(ExperimentView):
    """One experiment with its log and its analysis."""

    history: Annotated[list[ActionView], Field(description="The actions on the experiment, oldest first.")]
    report: Annotated[
        Report | None, Field(description="The analysis so far; null while the database is down.")
    ]


@dataclass(frozen=True, slots=True)
class LookMetric:
    """An arm's metric against control's at one time, with the interval of its confidence sequence."""

    arm: Annotated[str, Field(description="The arm's name.")]
    metric: Annotated[str, Field(description="The metric's name.")]
    units: Annotated[int, Field(description="Units of the arm and of control by then.")]
    difference: Annotated[float | None, Field(description="The arm's value minus control's.")]
    low: Annotated[float | None, Field(description="Lower end of the difference's interval.")]
    high: Annotated[float | None, Field(description="Upper end of the difference's interval.")]
    relative: Annotated[float | None, Field(description="The difference as a share of control's value.")]
    relative_low: Annotated[float | None, Field(description="Lower end of the relative interval.")]
    relative_high: Annotated[float | None, Field(description="Upper end of the relative interval.")]


@dataclass(frozen=True, slots=True)
class Look:
    """The metrics at one time."""

    time: Annotated[float, Field(description="Seconds since the epoch, UTC.")]
    metrics: Annotated[Sequence[LookMetric], Field(description="By arm, then in the config's order.")]


@dataclass(frozen=True, slots=True)
class Course:
    """An experiment's intervals over time. All of them hold together, as a confidence sequence does."""

    experiment: Annotated[str, Field(description="The experiment's name.")]
    looks: Annotated[Sequence[Look], Field(description="In order of time, evenly spaced.")]
    complete: Annotated[
        bool, Field(description="Whether all looks are there; ask again where the database is slow.")
    ]
