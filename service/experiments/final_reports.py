"""Keeps the last report of an experiment before the rows that it is made of are deleted."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.database import reason_of
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Log
from headroom.service.experiments.report import Look
from headroom.service.experiments.store import Store

logger = logging.getLogger("headroom.experiments")

TRIES = 6
TRY_SECONDS = 600.0
"""Time between two tries to make a report. After TRIES that failed, the rows go without one."""


@dataclass(slots=True)
class _Attempts:
    """Tries to make one report.

    next_try: not before this, on the monotonic clock. looks: those that the tries have computed.
    """

    failed: int = 0
    next_try: float = -math.inf
    looks: dict[float, Look] = field(default_factory=dict)


class FinalReports:
    """Makes last reports.

    tell: called with a sentence for the operator if one cannot be made.
    monotonic: returns seconds that never go back.
    """

    def __init__(self, store: Store, tell: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._store = store
        self._tell = tell
        self._monotonic = monotonic
        self._attempts: defaultdict[str, _Attempts] = defaultdict(_Attempts)

    def keep(self, config: ExperimentConfig, actions: Log, now: float) -> bool:
        """Make and keep the report of an experiment that is over, unless one is kept already.

        actions: its log. now: seconds since the epoch. Blocks, at millions of units for minutes.
        Return whether its rows may be deleted: the report is kept, or was tried to be made TRIES times.
        Raises DatabaseUnavailable if the database does not answer; that is no failed try.
        """
        name = config.name
        attempts = self._attempts[name]
        if self._store.final_report(name) is not None or attempts.failed == TRIES:
            return True
        if self._monotonic() < attempts.next_try:
            return False
        is_last_try = attempts.failed == TRIES - 1
        try:
            seconds = 0 if is_last_try else math.inf  # better a report without some looks than none
            report = analyse(self._store, config, actions, now, attempts.looks, looks_seconds=seconds)
        except Exception as error:
            self._store.final_report(name)  # raises if the database is down
            attempts.failed += 1
            attempts.next_try = self._monotonic() + TRY_SECONDS
            logger.warning("the last report of experiment %s could not be made", name, exc_info=error)
            if is_last_try:
                self._tell(
                    f"the experiment {name!r} will have no report, because outcome_days after its end are "
                    f"over and none could be made: {reason_of(error)}"
                )
            return is_last_try
        self._store.keep_final_report(name, report.as_json())
        return True
