"""What an operator's ramp, stop or ship adds to an experiment's log, or why it is refused.

The functions are called with the log in the transaction that appends to it, so that two operators, or an
operator and a guardrail, cannot act on a state that is no longer there. A replica reads the log every second.
So a ramp or a ship is refused if the log has entries that the replica had not read when the request came:
somebody may have stopped the experiment in that second. A stop is never refused for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.errors import Conflict, InvalidRequest
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import Action, ActionKind
from service.experiments.definition.state import Standing, fold, last_traffic

Log = Sequence[Action]
Decide = Callable[[Log], Log]
"""Returns the actions to append to a log. Raises Conflict or InvalidRequest."""


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request. seen: the length of the log that the replica knew when it came."""

    config: ExperimentConfig
    seen: int
    now: float
    actor: str
    reason: str

    def action(self, kind: ActionKind, *, arm: str | None = None, traffic: float | None = None) -> Action:
        """Return an action of this operator now."""
        return Action(self.config.name, kind, self.now, self.actor, arm, traffic, self.reason)


def ramp(request: Request, log: Log, *, traffic: float | None, reinstate: Sequence[str]) -> list[Action]:
    """Set the traffic and reinstate rolled back arms by name.

    traffic: None takes the schedule's next step; if there is none, it is an error. If arms are reinstated,
    None keeps the traffic, or that at which the experiment last ran. An experiment that runs also keeps its
    schedule then.
    """
    config = request.config
    standing = _unfinished(request, log)
    for number, arm in enumerate(reinstate):
        if arm not in standing.rolled_back:
            raise InvalidRequest(f"the arm {arm!r} is not rolled back", param=f"reinstate[{number}]")
    still_back = standing.rolled_back - set(reinstate)
    if still_back.issuperset(config.treatments):
        raise Conflict(
            f"Guardrails rolled back every treatment arm of {config.name!r}; name those to take in again in "
            f"`reinstate`: {', '.join(sorted(still_back))}."
        )
    keeps_schedule = traffic is None and bool(reinstate) and standing.is_running
    if traffic is None and reinstate:
        traffic = last_traffic(config, log, request.now)
    elif traffic is None:
        step = next_traffic(config, standing.traffic)
        traffic = None if step == standing.traffic else step
    if traffic is None:
        raise InvalidRequest(f"{config.name!r} has no next step; give the traffic", param="traffic")
    if (reason_refused := config.unexposed(traffic, still_back)) is not None:
        raise InvalidRequest(reason_refused, param="traffic")
    actions = [request.action("reinstate", arm=arm) for arm in reinstate]
    return actions if keeps_schedule else [*actions, request.action("ramp", traffic=traffic)]


def stop(request: Request, log: Log) -> list[Action]:
    """End the experiment. This also undoes a `ship`."""
    if fold(request.config, log, request.now).status == "stopped":
        raise Conflict(f"The experiment {request.config.name!r} is stopped already.")
    return [request.action("stop")]


def ship(request: Request, log: Log, *, arm: str) -> list[Action]:
    """End the experiment and give everybody an arm's variant."""
    _unfinished(request, log)
    names = [candidate.name for candidate in request.config.arms]
    if arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    return [request.action("ship", arm=arm)]


def next_traffic(config: ExperimentConfig, traffic: float) -> float:
    """Return the ramp's next step above this traffic, or this traffic if there is none.

    The traffic at the ramp's end, `config.traffic`, is its last step.
    """
    steps = (*(step for step, _ in config.ramp), config.traffic)
    return min((step for step in steps if step > traffic), default=traffic)


def _unfinished(request: Request, log: Log) -> Standing:
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
