"""The answers of the experiment routes, as plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from service.experiments.analysis.findings import Report
from service.experiments.definition.state import Status

UnixSeconds = Annotated[float, Field(description="Seconds since the epoch, UTC.")]


@dataclass(slots=True)
class ArmView:
    """One arm now."""

    name: Annotated[str, Field(description="Its name in the config.")]
    variant: Annotated[str, Field(description="What scores for its units.")]
    weight: Annotated[int, Field(description="Its share of the units, relative to the other arms' weights.")]
    control: Annotated[bool, Field(description="Whether the others are measured against it.")]
    exposures: Annotated[int, Field(description="Units exposed so far, as the database counts them.")]


@dataclass(slots=True)
class GuardrailView:
    """What the answering replica's guardrails see of one arm in their window."""

    arm: Annotated[str, Field(description="Its name.")]
    requests: Annotated[int, Field(description="In the window.")]
    error_rate: Annotated[
        float | None,
        Field(description="Share of the requests that the arm's variant failed; null: no request."),
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
    arm: Annotated[str | None, Field(description="That was shipped, rolled back or reinstated.")]
    traffic: Annotated[float | None, Field(description="After a ramp.")]
    actor: Annotated[str, Field(description="The key's name, `guardrail` or `schedule`.")]
    reason: Annotated[str, Field(description="The guardrail's name, or the person's words.")]
    detail: Annotated[str, Field(description="What the guardrail saw, or what the experiment started with.")]


@dataclass(slots=True)
class ExperimentView:
    """One experiment now."""

    name: Annotated[str, Field(description="Its name in the config.")]
    status: Annotated[
        Status,
        Field(
            description="`pending`: its start is not recorded yet; `rolled_back`: no treatment arm is left; "
            "`changed`: the config's salt or arms are not those it started with, so it does not run."
        ),
    ]
    traffic: Annotated[float, Field(description="Share of each arm's units that is exposed now.")]
    next_step: Annotated[float | None, Field(description="When the ramp goes on, in Unix seconds.")]
    started: Annotated[float | None, Field(description="Seconds since the epoch, UTC; null: not yet.")]
    slots: Annotated[
        tuple[int, int],
        Field(description="From and to (excluded): the part of the 10,000 slots that the experiment has."),
    ]
    where: Annotated[dict[str, Any], Field(description="Attributes that requests must have to take part.")]
    shadow: Annotated[float, Field(description="Share of requests that are scored under every arm.")]
    arms: Annotated[list[ArmView], Field(description="In the config's order.")]
    rolled_back: Annotated[list[str], Field(description="Arms that are back at control.")]
    shipped: Annotated[str | None, Field(description="The arm that everybody gets.")]
    sample_ratio_p: Annotated[
        float | None,
        Field(
            description="Anytime-valid p of the sample-ratio check since the last start, ramp, rollback or "
            "reinstatement; None: no exposure since."
        ),
    ]
    guardrails: Annotated[
        list[GuardrailView], Field(description="What the answering replica sees, one entry for each arm.")
    ]


@dataclass(slots=True)
class ExperimentsView:
    """The experiments of the live config."""

    config_version: Annotated[str, Field(description="Changes with the live config.")]
    state_version: Annotated[int, Field(description="Grows with every action on an experiment.")]
    experiments: Annotated[list[ExperimentView], Field(description="In the config's order.")]


@dataclass(slots=True)
class ExperimentDetail(ExperimentView):
    """One experiment with its log and its analysis."""

    history: Annotated[list[ActionView], Field(description="What was done to the experiment, oldest first.")]
    report: Annotated[
        Report | None, Field(description="The analysis so far; null while the database is down.")
    ]
