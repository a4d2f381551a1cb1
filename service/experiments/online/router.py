"""Gives requests their variant, and logs their results. No request waits for the database.

A unit is exposed by a request that its arm's variant answered or failed. A request that was refused for a
reason that no arm causes (a full queue, a wrong field, draining) exposes nobody. So an arm that fails keeps
its units in the analysis, and a refusal adds none. The caller says which it was: `succeeded`, `failed`,
`fell_back` or `abandoned`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.experiments.definition.assignment import Assigned, Assigner
from service.experiments.definition.events import Exposure, ShadowResult
from service.experiments.definition.fields import Attribute
from service.experiments.online.exposures import RecentlySeen
from service.experiments.online.ledger import Ledger
from service.experiments.online.observer import ExperimentObserver
from service.experiments.online.windows import Scores, Windows
from service.experiments.storage.writer import Writer

logger = logging.getLogger("headroom.experiments")

SHADOW_DEPTH = 1_000
"""If the buffer holds this many records, shadow results, which may be large, are not added to it."""

WARNING_SECONDS = 10.0
"""A failing arm is logged once in this time."""


@dataclass(frozen=True, slots=True)
class Route:
    """The experiments' answer to one request.

    variant: None leaves the choice to the config's default.
    exposure: is logged once it is clear that the request was not refused; None for a listed unit.
    """

    variant: str | None = None
    assigned: Assigned | None = None
    exposure: Exposure | None = None


UNROUTED = Route()


class Router:
    """Assigns requests, logs exposures, and counts the requests of each arm.

    Args:
        ledger: knows where the experiments stand.
        windows: counts the requests for the guardrails.
        writer: stores exposures and shadow results.
        observer: is told of exposures, fallbacks and lost rows.
        monotonic: returns seconds that never go back.
    """

    def __init__(
        self,
        ledger: Ledger,
        windows: Windows,
        writer: Writer,
        observer: ExperimentObserver,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._windows = windows
        self._writer = writer
        self._observer = observer
        self._monotonic = monotonic
        self._seen = RecentlySeen()
        self._next_warning: dict[tuple[str, str], float] = {}

    def route(self, assigner: Assigner, unit: str | None, attributes: Mapping[str, Attribute]) -> Route:
        """Return the variant for a request that names neither variant nor mask. Never blocks."""
        if not assigner.experiments:
            return UNROUTED
        standings = self._ledger.standings
        if unit is not None:
            assigned = assigner.assign(unit, attributes, standings)
            if assigned is not None:
                exposure = None if assigned.forced else self._exposure(assigned, unit)
                return Route(assigned.variant, assigned, exposure)
        return Route(assigner.shipped(unit, attributes, standings))

    def succeeded(self, route: Route, elapsed: float, scores: Callable[[], Scores]) -> None:
        """Log that the arm's own variant answered a request, `elapsed` seconds after it came."""
        self._record(route, elapsed, scores=scores)

    def failed(self, route: Route, elapsed: float) -> None:
        """Log that the arm's variant failed a request, and that nothing answered in its place."""
        self._record(route, elapsed, is_error=True)

    def fell_back(self, route: Route, elapsed: float, error: Exception) -> None:
        """Log that the arm's variant failed a request, and that the control's variant answered it."""
        self._record(route, elapsed, is_error=True)
        assigned = route.assigned
        assert assigned is not None
        self._observer.fell_back(assigned.experiment, assigned.arm)
        key, now = (assigned.experiment, assigned.arm), self._monotonic()
        if now >= self._next_warning.get(key, now):  # a broken arm fails all its requests
            self._next_warning[key] = now + WARNING_SECONDS
            logger.warning("experiment %s: arm %s failed a request: %r", *key, error)

    def abandoned(self, route: Route, elapsed: float, *, late: bool) -> None:
        """Log that nobody waits for the answer any more. late: its deadline passed, which is an error.

        A client that hung up says something about the arm only if it had already waited too long. Its unit
        is exposed in any case, because a slow arm loses more clients.
        """
        assigned = route.assigned
        config = None if assigned is None else self._ledger.config(assigned.experiment)
        limit_ms = None if config is None else config.guardrails.p99_ms
        if late or (limit_ms is not None and elapsed * 1000 > limit_ms):
            self._record(route, elapsed, is_error=late)
        else:
            self._expose(route)

    def shadow_result(self, result: ShadowResult) -> None:
        """Hand a paired comparison to the writer, unless exposures need the room."""
        if self._writer.failure is None and self._writer.depth < SHADOW_DEPTH:
            self._writer.put(result)
        else:
            self._observer.lost("shadow", 1)

    def _exposure(self, assigned: Assigned, unit: str) -> Exposure:
        return Exposure(
            experiment=assigned.experiment,
            unit=unit,
            arm=assigned.arm,
            bucket=assigned.bucket,
            time=self._ledger.clock(),
            config_version=self._ledger.config_version,
            epoch=assigned.epoch,
        )

    def _expose(self, route: Route) -> None:
        exposure = route.exposure
        if exposure is None:
            return
        member = (exposure.experiment, exposure.epoch, exposure.unit)
        if not self._seen.add(member):
            return
        self._observer.exposed(exposure.experiment, exposure.arm)
        if not self._writer.put(exposure):
            self._seen.forget(member)  # the unit's next request tries again

    def _record(
        self,
        route: Route,
        elapsed: float,
        *,
        scores: Callable[[], Scores] | None = None,
        is_error: bool = False,
    ) -> None:
        """Log the exposure, and count the request for the guardrails."""
        self._expose(route)
        assigned = route.assigned
        if assigned is not None and not assigned.forced:
            unit = "" if route.exposure is None else route.exposure.unit
            self._windows.record(
                assigned.experiment, assigned.arm, elapsed, unit=unit, scores=scores, is_error=is_error
            )
