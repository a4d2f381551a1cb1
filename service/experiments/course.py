"""The intervals of an experiment at past times: what a report said then, or would have said."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from service.experiments.analysis import compare_all
from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.report import Course, Look
from service.experiments.state import runs
from service.experiments.store import Store

MAX_LOOKS = 30
STEPS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 7 * 86_400, 28 * 86_400)


def look_times(config: ExperimentConfig, actions: Sequence[Action], now: float) -> list[float]:
    """Return evenly spaced times from the start until now, or until the end of the last run.

    They stay the same from one call to the next, so that a past look is computed once.
    """
    ran = runs(config, actions, now)
    if not ran:
        return []
    start, end = ran[0].start, min(now, ran[-1].end)
    step = next((step for step in STEPS if (end - start) / step <= MAX_LOOKS), None)
    if step is None:
        step = STEPS[-1] * (1 + int((end - start) / STEPS[-1] / MAX_LOOKS))
    count = int((end - start) / step)
    return [start + step * number for number in range(1, count + 1)]


def course(
    store: Store,
    config: ExperimentConfig,
    actions: Sequence[Action],
    times: Sequence[float],
    known: dict[float, Look],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Course:
    """Return the looks at these times. known: those computed before, which new ones are added to.

    It stops after some seconds with what it has. Raises DatabaseUnavailable.
    """
    until = clock() + seconds
    for moment in times:
        if moment not in known:
            if clock() > until:
                break
            known[moment] = _look(store, config, actions, moment)
    looks = [known[moment] for moment in times if moment in known]
    return Course(config.name, looks, len(looks) == len(times))


def _look(store: Store, config: ExperimentConfig, actions: Sequence[Action], moment: float) -> Look:
    logged_at = list(accumulate((action.time for action in actions), max))  # replicas' clocks differ
    so_far = actions[: bisect_right(logged_at, moment)]
    reports = compare_all(store, config, so_far, moment, until=moment)
    return Look(moment, [report for of_arm in reports.values() for report in of_arm])
