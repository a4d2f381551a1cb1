"""The records of an experiment, as plain values. All times are seconds since the epoch, UTC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

MAX_TEXT = 256
"""Characters of a unit, an outcome's id or a metric's name: an index row of PostgreSQL must hold them."""

MAX_VALUE = 1e15
"""Largest absolute value of an outcome, so that sums of squares stay exact enough."""

ActionKind = Literal["start", "ramp", "stop", "ship", "rollback", "reinstate"]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A unit met its arm. A unit's first exposure in an epoch counts; a forced arm (QA) is no exposure.

    epoch: the label of the epoch (epochs.py).
    """

    experiment: str
    unit: str
    arm: str
    bucket: int
    time: float
    config_version: str
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An action of a unit. `id` is unique within the experiment; the same id again is a duplicate."""

    experiment: str
    id: str
    unit: str
    metric: str
    value: float
    time: float


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """An outcome that is stored, and counts once an exposure of its unit is stored too."""

    index: Annotated[int, Field(description="Position in the request.")]
    id: Annotated[str, Field(description="The outcome's id.")]
    message: Annotated[str, Field(description="One sentence; for people.")]


@dataclass(frozen=True, slots=True)
class UnknownOutcome:
    """An outcome that is not stored."""

    index: Annotated[int, Field(description="Position in the request.")]
    id: Annotated[str, Field(description="The outcome's id.")]
    reason: Annotated[
        Literal["experiment", "metric"],
        Field(
            description="`experiment`: there is none of this name. `metric`: the experiment declares others. "
            "Send it again once the config is right."
        ),
    ]
    message: Annotated[str, Field(description="One sentence; for people.")]


@dataclass(frozen=True, slots=True)
class OutcomeReceipt:
    """The result of a batch of outcomes. The four numbers add up to the batch's length."""

    accepted: Annotated[int, Field(description="Outcomes that were stored and count for their unit's arm.")]
    duplicates: Annotated[
        int, Field(description="Outcomes that were ignored, because their id is stored already.")
    ]
    unknown: Annotated[
        int, Field(description="Outcomes that are not stored; `unknown_outcomes` says which and why.")
    ]
    pending: Annotated[
        int,
        Field(
            description="Outcomes that were stored before an exposure of their unit was. They count once it "
            "is; they are kept for a day (those of a covariate: as long as retention allows)."
        ),
    ] = 0
    unknown_outcomes: Annotated[
        Sequence[UnknownOutcome], Field(description="One entry per unknown outcome, in the request's order.")
    ] = ()
    pending_outcomes: Annotated[
        Sequence[PendingOutcome], Field(description="One entry per pending outcome, in the request's order.")
    ] = ()


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """One request scored under control and under another arm, pair by pair.

    mean_delta: mean over the pairs of the arm's score minus control's.
    abs_deltas: |difference| of each pair, in any order.
    rank_correlation: Spearman's; None for fewer than two titles or if one arm scores all titles alike.
    top10_overlap: share of control's ten best titles among the arm's ten best; None for ten titles or fewer.
    ndcg_control, ndcg_arm: NDCG@10, if the request brought grades.
    control_seconds, arm_seconds: the time from admission to result, if measured.
    unit: whose request it was, if it named one.
    """

    experiment: str
    arm: str
    time: float
    mean_delta: float
    abs_deltas: tuple[float, ...]
    rank_correlation: float | None = None
    top10_overlap: float | None = None
    ndcg_control: float | None = None
    ndcg_arm: float | None = None
    control_seconds: float | None = None
    arm_seconds: float | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A change to an experiment, made by a person, a guardrail or the schedule.

    arm: the arm that was shipped, rolled back or reinstated. traffic: the traffic after a ramp. reason: the
    guardrail's name or a person's words. actor: a key's name, `guardrail` or `schedule`.
    seen: the length of the experiment's log that the replica knew when a guardrail rolled back; else None.
    """

    experiment: str
    kind: ActionKind
    time: float
    actor: str
    arm: str | None = None
    traffic: float | None = None
    reason: str = ""
    detail: str = ""
    seen: int | None = None


def unstorable_value(value: float) -> str | None:
    """Return why an outcome's value cannot be stored; None if it can."""
    if math.isfinite(value) and abs(value) <= MAX_VALUE:
        return None
    return f"must be a finite number between {-MAX_VALUE:g} and {MAX_VALUE:g}"
