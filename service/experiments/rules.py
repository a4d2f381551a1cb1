"""Checks what may be done to experiments: by an edit of the config, by a start over HTTP, and by a person.

Each rule is a function of what the log says. It raises with the sentence that the operator gets.
"""

from collections.abc import Mapping
from dataclasses import replace

from headroom.service.errors import Conflict, InvalidRequest
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import Entry, EntryKind, World, advance, changed_identity
from headroom.service.experiments.state import Experiment, Status

ALLOWED: Mapping[EntryKind, tuple[Status, ...]] = {
    "ramp": ("running",),
    "stop": ("running", "paused", "shipped", "rolled_back"),
    "ship": ("running", "stopped"),
    "rollback": ("shipped",),
}
"""The states in which a person may do something."""

_WHY: Mapping[Status, str] = {
    "paused": "is paused; change the config, which stands in its way, or stop it.",
    "shipped": "has shipped an arm; roll it back to undo that.",
    "stopped": "is stopped already; to go on, give a new experiment another name and salt.",
    "rolled_back": "is rolled back; to go on, give a new experiment another name and salt.",
}

_WHY_NO_ROLLBACK = (
    "has shipped no arm, so there is nothing to roll back; `stop` ends an experiment that runs."
)


def check_edit(world: World, entry: Entry, *, is_start: bool) -> None:
    """Raise ValueError if a config cannot be put in force.

    entry: the row that the config would add to the log.
    is_start: whether a replica starts with it, which pauses what the config does not let run. An edit pauses
        only what it leaves out.
    """
    assert entry.declared is not None
    after = advance(world, entry)
    for name, experiment in after.experiments.items():
        before = world.experiments.get(name)
        is_left_out = experiment.source == "config" and entry.declared.find(name) is None
        if is_start or is_left_out or before is None or before.paused is not None:
            continue
        if changed_identity(experiment.config, entry.declared) is not None:
            raise ValueError(f"experiments: {experiment.paused}")
        if experiment.paused is not None:
            raise ValueError(
                f"experiments: it would pause {name!r}: {experiment.paused}; change that, or stop {name!r} "
                "first"
            )
    clause = _shipped_twice(after)
    if clause is not None:
        raise ValueError(f"experiments: {clause}")


def check_start(config: ExperimentConfig, world: World) -> None:
    """Raise Conflict if an experiment cannot start now without a file."""
    name = config.name
    if name in world.experiments:
        raise Conflict(
            f"name: there is an experiment {name!r} already, or was one, and its log stays; give this one "
            "another name."
        )
    start = Entry("start", world.time, declared=replace(world.declared, experiments=(config,)))
    clause = advance(world, start).experiments[name].paused
    if clause is not None:
        raise Conflict(f"{clause}; give this one its own, or stop that one first.")


def check_action(entry: Entry, world: World) -> None:
    """Raise Conflict or InvalidRequest if a person cannot do now what a row says."""
    name = entry.experiment
    experiment = world.experiments.get(name)
    if experiment is None:
        raise Conflict(f"The experiment {name!r} has not started yet; try again in a moment.")
    if entry.kind == "ship":
        _check_arm(experiment, entry.arm, world)
    if experiment.status not in ALLOWED[entry.kind]:
        why = _WHY_NO_ROLLBACK if entry.kind == "rollback" else _WHY[experiment.status]
        raise Conflict(f"The experiment {name!r} {why}")
    if entry.kind == "ramp" and entry.traffic is not None:
        reason = experiment.config.uneven(entry.traffic, experiment.rolled_back)
        if reason is not None:
            raise InvalidRequest(reason, param="traffic")
    if entry.kind == "ship":
        clause = _shipped_twice(advance(world, entry))
        if clause is not None:
            raise Conflict(f"{clause[0].upper()}{clause[1:]}.")


def _check_arm(experiment: Experiment, arm: str | None, world: World) -> None:
    """Raise InvalidRequest or Conflict if nobody could get this arm's variant."""
    names = [candidate.name for candidate in experiment.config.arms]
    if arm is None or arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    if arm in experiment.rolled_back:
        raise Conflict(f"A guardrail rolled back the arm {arm!r}; its variant can only become the `default`.")
    variant = experiment.config.variant_of(arm)
    variants = world.declared.variants
    if variants is not None and variant not in variants:
        raise Conflict(
            f"The arm {arm!r} has the variant {variant!r}, which is not in the config: everybody would go on "
            "to get the default. Put it back before you ship it."
        )


def _shipped_twice(world: World) -> str | None:
    """Return that several experiments have each shipped an arm, as a clause; None if at most one has."""
    shipped = [name for name, experiment in world.experiments.items() if experiment.everybody_gets]
    if len(shipped) < 2:
        return None
    return (
        f"the experiments {' and '.join(map(repr, shipped))} would each have shipped an arm, and everybody "
        "can get only one variant: roll one back, or make its variant the `default` and take its experiment "
        "out"
    )
