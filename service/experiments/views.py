"""What the experiment routes answer with: plain dataclasses, written field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from service.experiments.findings import Report
from service.experiments.state import Status

UnixSeconds = Annotated[float, Field(description="Seconds since the epoch, UTC.")]


@dataclass(slots=True)
class ArmView:
    name: str
    variant: str
    weight: int
    control: Annotated[bool, Field(description="Whether the others are measured against it.")]
    exposures: Annotated[int, Field(description="Units exposed so far, as the database counts them.")]


@dataclass(slots=True)
class GuardrailView:
    """What the answering replica's guardrails see of one arm in their window."""

    arm: str
    requests: int
    error_rate: float | None
    p99_ms: float | None
    score_shift: Annotated[float | None, Field(description="Population stability index against control.")]


@dataclass(slots=True)
class ActionView:
    """One entry of an experiment's log."""

    time: UnixSeconds
    kind: str
    arm: str | None
    traffic: float | None
    actor: str
    reason: str
    detail: str


@dataclass(slots=True)
class ExperimentView:
    """One experiment now."""

    name: str
    status: Annotated[
        Status,
        Field(
            description="`pending`: its start is not recorded yet; `rolled_back`: no treatment arm is left; "
            "`changed`: the config's salt or arms are not those it started with, so it does not run."
        ),
    ]
    traffic: Annotated[float, Field(description="Share of each arm's units that is exposed now.")]
    next_step: Annotated[float | None, Field(description="When the ramp goes on, in Unix seconds.")]
    started: UnixSeconds | None
    slots: tuple[int, int]
    where: dict[str, Any]
    shadow: float
    arms: list[ArmView]
    rolled_back: Annotated[list[str], Field(description="Arms that are back at control.")]
    shipped: Annotated[str | None, Field(description="The arm that everybody gets.")]
    sample_ratio_p: Annotated[
        float | None,
        Field(
            description="Anytime-valid p of the sample-ratio check since the last start, ramp, rollback or "
            "reinstatement; None: no exposure since."
        ),
    ]
    guardrails: list[GuardrailView]


@dataclass(slots=True)
class ExperimentsView:
    """The experiments of the live config."""

    config_version: str
    state_version: Annotated[int, Field(description="Grows with every action on an experiment.")]
    experiments: list[ExperimentView]


@dataclass(slots=True)
class ExperimentDetail(ExperimentView):
    """One experiment with its log and its analysis."""

    history: list[ActionView]
    report: Annotated[
        Report | None, Field(description="The analysis so far; null while the database is down.")
    ]
