"""Tells in SQL which units still had their arm at a time."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, not_, true

from headroom.service.experiments.state import Withdrawal

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]


def had_arm(units: FromClause, time: Expression, withdrawals: Iterable[Withdrawal]) -> Condition:
    """Return the condition that a unit still has its arm at a time after its exposure.

    units: rows with the columns `time`, `bucket` and `arm` of exposures.
    """
    condition: Condition = true()
    for withdrawal in withdrawals:
        is_between = and_(units.c.time < withdrawal.time, time >= withdrawal.time)
        condition = and_(condition, not_(and_(is_between, _is_withdrawn(units, withdrawal))))
    return condition


def _is_withdrawn(units: FromClause, withdrawal: Withdrawal) -> Condition:
    """Return the condition that a unit's bucket is no longer exposed."""
    if not withdrawal.limits:
        return true()
    return units.c.bucket >= case(dict(withdrawal.limits), value=units.c.arm, else_=0)
