"""Decides what an operator's ramp, stop or ship adds to an experiment's log, or refuses it.

The functions are called with the log in the transaction that appends to it, so that two operators, or an
operator and a guardrail, cannot act on a state that is no longer there. A replica reads the log every second.
So a ramp or a ship is refused if the log has entries that the replica had not read when the request came:
somebody may have stopped the experiment in that second. A stop is never refused for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.errors import Conflict, InvalidRequest
from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action, ActionKind
from service.experiments.state import Standing, fold, runs

Log = Sequence[Action]


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """An operator's request. seen: the length of the log that the replica knew when it came."""

    config: ExperimentConfig
    seen: int
    now: float
    actor: str
    reason: str

    def action(self, kind: ActionKind, *, arm: str | None = None, traffic: float | None = None) -> Action:
        """Return an action of this operator now."""
        return Action(self.config.name, kind, self.now, self.actor, arm, traffic, self.reason)


Decide = Callable[[OperatorRequest, Log], Log]
"""Returns the actions to append to a log. Raises Conflict or InvalidRequest."""


def ramp(
    request: OperatorRequest, log: Log, *, traffic: float | None, reinstate: Sequence[str]
) -> list[Action]:
    """Set the traffic and reinstate rolled back arms by name.

    An arm is reinstated only if no other arm ran while it was away. Otherwise the users who came meanwhile
    would be new in this arm and known in the others, and the arms could not be compared.
    traffic: None takes the schedule's next step or, if arms are reinstated, that at which they last ran.
    """
    config = request.config
    standing = _unfinished(request, log)
    last_run = next(reversed(runs(config, log, request.now)), None)
    for number, arm in enumerate(reinstate):
        if arm not in standing.rolled_back:
            raise InvalidRequest(f"the arm {arm!r} is not rolled back", param=f"reinstate[{number}]")
        if last_run is not None and arm not in last_run.limits:
            raise Conflict(
                f"Other arms of {config.name!r} ran while {arm!r} was away, so it can no longer be compared "
                "with them; give a new experiment another name and salt."
            )
    still_back = standing.rolled_back - set(reinstate)
    if still_back.issuperset(config.treatments):
        raise Conflict(
            f"Guardrails rolled back every treatment arm of {config.name!r}; name those to take in again in "
            f"`reinstate`: {', '.join(sorted(still_back))}."
        )
    if traffic is None and reinstate and last_run is not None:
        traffic = last_run.traffic
    elif traffic is None:
        steps = (*(step for step, _ in config.ramp), config.traffic)
        traffic = min((step for step in steps if step > standing.traffic), default=None)
    if traffic is None:
        raise InvalidRequest(f"{config.name!r} has no next step; give the traffic", param="traffic")
    if (reason_refused := config.uneven(traffic, still_back)) is not None:
        raise InvalidRequest(reason_refused, param="traffic")
    reinstated = [request.action("reinstate", arm=arm) for arm in reinstate]
    return [*reinstated, request.action("ramp", traffic=traffic)]


def stop(request: OperatorRequest, log: Log) -> list[Action]:
    """End the experiment. This also undoes a `ship`."""
    if fold(request.config, log, request.now).status == "stopped":
        raise Conflict(f"The experiment {request.config.name!r} is stopped already.")
    return [request.action("stop")]


def ship(request: OperatorRequest, log: Log, *, arm: str) -> list[Action]:
    """End the experiment and give everybody an arm's variant."""
    _unfinished(request, log)
    names = [candidate.name for candidate in request.config.arms]
    if arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    return [request.action("ship", arm=arm)]


def _unfinished(request: OperatorRequest, log: Log) -> Standing:
    """Return where an experiment stands that may be ramped and shipped; raise Conflict if it may not."""
    name = request.config.name
    standing = fold(request.config, log, request.now)
    if standing.status == "shipped":
        raise Conflict(
            f"The experiment {name!r} has shipped arm {standing.shipped!r}; stop it to take that back."
        )
    if standing.status == "changed":
        raise Conflict(
            f"The config's salt or arms of {name!r} are not those it started with; "
            "give the changed experiment another name and salt."
        )
    if len(log) > request.seen:
        last = log[-1]
        raise Conflict(
            f"The experiment {name!r} changed a moment ago ({last.kind} by {last.actor}); look at it, and "
            "send this again if you still want it."
        )
    return standing
