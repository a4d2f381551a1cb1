"""The facts of an experiment, as plain values. All times are seconds since the epoch, UTC."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headroom.service.descriptions import documented

MAX_TEXT = 256
"""Characters of a unit, an outcome's id or a metric's name: an index row of PostgreSQL must hold them."""

MAX_VALUE = 1e15
"""Largest absolute value of an outcome, so that sums of squares stay exact enough."""

UnknownReason = Literal["experiment", "metric", "impression", "unit", "index", "value"]

UnmatchedReason = Literal["impression", "unit", "index"]

ActionKind = Literal["start", "edit", "ramp", "stop", "ship", "rollback", "delete"]


def values_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record, which are the columns of its table."""
    return {name: getattr(record, name) for name in record.__slots__}


@dataclass(frozen=True, slots=True)
class Exposure:
    """A unit was given its arm.

    slot: the unit's; None if the caller chose the arm.
    """

    experiment: str
    unit: str
    arm: str
    bucket: int
    time: float
    config_version: str
    slot: int | None = None


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
class Impression:
    """A list that was shown to a unit, drawn from the rankings of both arms.

    teams_by_index: one character per title of the request, in the request's order: "c" control's, "t" the
        treatment's, "s" shared by both, "-" not shown.
    places: the request's indices in the order shown.
    ids: the ids that the request sent for its titles, in its order.
    query_id: the caller's own id of the list.
    """

    experiment: str
    id: str
    unit: str
    time: float
    config_version: str
    teams_by_index: str
    places: tuple[int, ...]
    ids: tuple[str, ...] | None = None
    query_id: str | None = None


@dataclass(frozen=True, slots=True)
class Click:
    """A click as it was sent, whether or not its list is stored.

    experiment: "" if the sender named the list alone. list_id: an impression's id or a caller's query id.
    index: of the title in the request. rank: of the title in the order shown, from 1. object_id: one of the
        request's ids. At least one of the three says what was clicked.
    `id` is unique within the experiment.
    """

    experiment: str
    id: str
    unit: str
    metric: str
    list_id: str
    value: float
    time: float
    index: int | None = None
    rank: int | None = None
    object_id: str | None = None


@documented
@dataclass(frozen=True, slots=True)
class UnknownOutcome:
    """An outcome that cannot count as it is."""

    index: int
    """Position in the request."""
    id: str
    """The outcome's id."""
    reason: UnknownReason
    """`experiment`: there is none of this name; send it again once there is. `metric`: no experiment that it
    may belong to declares it; it is stored, and counts once one does; send a corrected one with another id.
    The others are about clicks on interleaved lists; sending them again does not help. `impression`: it is
    missing. `unit`: the impression is another unit's. `index`: the impression did not show this title.
    `value`: a click's value must be above 0."""
    message: str
    """One sentence; for people."""


@documented
@dataclass(frozen=True, slots=True)
class OutcomeReceipt:
    """The result of a batch of outcomes. The three numbers add up to the batch's length."""

    accepted: int
    """Outcomes that were stored. They count once their unit's exposure, and a click's list, is, too."""
    duplicates: int
    """Outcomes that were ignored, because their id is stored already."""
    unknown: int
    """Outcomes that cannot count; `unknown_outcomes` says which and why."""
    unknown_outcomes: Sequence[UnknownOutcome] = ()
    """One entry each, in the request's order."""
    duplicate_ids: Sequence[str] = ()
    """The ids of the duplicates, in the request's order."""


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """One request scored under control and under another arm, pair by pair.

    mean_delta: mean over the pairs of the arm's score minus control's.
    mean_abs_delta: mean of |difference|.
    rank_correlation: Spearman's; None for fewer than two titles or if one arm scores all titles alike.
    top10_overlap: share of control's ten best titles among the arm's ten best; None for ten titles or fewer.
    ndcg_delta: the arm's NDCG@10 minus control's, if the request brought grades.
    seconds_delta: the arm's time from admission to result minus control's, if measured.
    unit: the unit of the request, if it named one.
    """

    experiment: str
    arm: str
    time: float
    mean_delta: float
    mean_abs_delta: float
    rank_correlation: float | None = None
    top10_overlap: float | None = None
    ndcg_delta: float | None = None
    seconds_delta: float | None = None
    unit: str | None = None


@documented
@dataclass(frozen=True, slots=True)
class Action:
    """A change to an experiment, made by a person, a guardrail, the config or `outcome_days`."""

    experiment: str
    """The experiment's name."""
    kind: ActionKind
    """What was done. `edit`: the config in force declares it otherwise, or no longer."""
    time: float
    """Seconds since the epoch, UTC."""
    actor: str
    """The key's name, `guardrail`, `config`, or `outcome_days` for a deletion of its rows."""
    arm: str | None = None
    """The arm that was shipped, or that a guardrail rolled back. A person's rollback of a ship has none."""
    traffic: float | None = None
    """The traffic after a ramp."""
    reason: str = ""
    """The guardrail's name, or the person's words."""
    detail: str = ""
    """The guardrail's figures, the arms and salt at the start, what an edit changed, or the arm whose ship
    was rolled back."""
