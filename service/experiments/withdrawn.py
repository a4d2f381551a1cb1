"""Tells in SQL which units still had their arm at a time, or all the time until then."""

import math
from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, not_, or_, true

from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ALL_SLOTS
from headroom.service.experiments.state import Withdrawal

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]


def had_arm(
    units: FromClause, time: Expression, withdrawals: Iterable[Withdrawal], *, throughout: bool = False
) -> Condition:
    """Return the condition that a unit has its arm at a time after its exposure.

    units: rows with the columns `time`, `bucket`, `slot` and `arm` of exposures.
    throughout: whether it must have had its arm from its exposure until then.
    """
    condition: Condition = true()
    for withdrawal in withdrawals:
        lacks_arm = and_(units.c.time < withdrawal.time, time >= withdrawal.time)
        if not throughout and withdrawal.until < math.inf:
            lacks_arm = and_(lacks_arm, time < withdrawal.until)
        condition = and_(condition, not_(and_(lacks_arm, _is_withdrawn(units, withdrawal))))
    return condition


def _is_withdrawn(units: FromClause, withdrawal: Withdrawal) -> Condition:
    """Return the condition that a unit's bucket or slot is not exposed.

    Of a unit whose slot an earlier release did not store, it is not known; so its outcomes do not count,
    whichever its arm is.
    """
    if not withdrawal.limits:
        return true()
    limit = case(dict(withdrawal.limits), value=units.c.arm, else_=NO_BUCKET)
    is_withdrawn: Condition = units.c.bucket >= limit
    if withdrawal.slots == ALL_SLOTS:
        return is_withdrawn
    first, end = withdrawal.slots
    is_outside = or_(units.c.slot.is_(None), units.c.slot < first, units.c.slot >= end)
    return or_(is_withdrawn, and_(units.c.bucket != NO_BUCKET, is_outside))
