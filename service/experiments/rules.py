"""What may be done to experiments: by an edit of the config, by a start over HTTP, and by a person.

Each rule is a function of what the log says. It raises with the sentence that the operator gets.
"""

from collections.abc import Callable

from headroom.service.errors import Conflict, InvalidRequest
from headroom.service.experiments.definition import ExperimentConfig, ScoreKinds
from headroom.service.experiments.log import Declared, Entry, EntryKind, World, advance, identity
from headroom.service.experiments.state import Experiment

MAX_OPEN = 64
"""Experiments without a file that are not stopped."""

Decide = Callable[[ExperimentConfig, World], Entry]
"""Returns the row to add to the log, without its time and actor, from an experiment and the log. Raises
Conflict or InvalidRequest if these forbid it."""


def check_edit(world: World, running: Declared | None, entry: Entry) -> None:
    """Raise ValueError if a config cannot be put in force.

    running: what this replica's config declares now; None at its start, when any config is taken that does
    not have two experiments shipped. entry: the row that the config would add to the log.
    """
    assert entry.declared is not None
    after = advance(world, entry)
    if running is not None:
        for index, config in enumerate(entry.declared.experiments):
            _check_declared(world, running, index, config)
        for name, experiment in after.experiments.items():
            before = world.experiments.get(name)
            if experiment.paused is not None and before is not None and before.paused is None:
                raise ValueError(f"{experiment.paused}; change that, or stop {name!r} first")
    shipped = [name for name, experiment in after.experiments.items() if experiment.everybody_gets]
    if len(shipped) > 1:
        raise ValueError(
            f"experiments: {' and '.join(map(repr, shipped))} have each shipped an arm, and everybody can "
            "get only one variant: make the one that is to stay the `default`, and take its experiment out"
        )


def _check_declared(world: World, running: Declared, index: int, config: ExperimentConfig) -> None:
    """Raise ValueError if an edit would start an experiment twice, or move the units of one that runs."""
    experiment = world.experiments.get(config.name)
    if experiment is None:
        return
    current = running.find(config.name)
    if experiment.source == "http" and current is None:
        raise ValueError(
            f"experiments[{index}].name: an experiment {config.name!r} was started without a file; give this "
            "one another name"
        )
    begun = identity(experiment.begun)
    allowed = {begun} if current is None else {begun, identity(current)}
    if identity(config) not in allowed:
        raise ValueError(
            f"experiments[{index}]: {config.name!r} has begun, so its kind, salt and arms must stay as they "
            f"are from its start on ({begun}); give the changed experiment another name and salt"
        )


def check_variants(config: ExperimentConfig, variants: ScoreKinds) -> None:
    """Raise InvalidRequest if an arm has an unknown variant, or one whose scores do not fit the others'."""
    for field, clause in config.unknown_variants(variants):
        raise InvalidRequest(clause, param=field)
    if (reason := config.mixed_scores(variants)) is not None:
        raise InvalidRequest(reason, param="arms")


def check_start(config: ExperimentConfig, world: World) -> None:
    """Raise Conflict if an experiment cannot start now without a file."""
    name = config.name
    if world.declared.find(name) is not None:
        raise Conflict(f"name: {name!r} is an experiment of the config; give this one another name.")
    if name in world.experiments:
        raise Conflict(
            f"name: there was an experiment {name!r} already, and its log stays; give this one another name."
        )
    experiments = world.experiments.values()
    if sum(each.source == "http" and not each.is_stopped for each in experiments) >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} experiments that were started without a file are not stopped; stop one.")
    for other_name, other in world.experiments.items():
        if other.is_over or other.status == "out":
            continue
        for field, clause in config.clashes(other.config):
            raise Conflict(
                f"{field}: {clause} of {other_name!r}, which is {other.status}; give this one its own, or "
                f"stop {other_name!r} first."
            )


def ramp(config: ExperimentConfig, world: World, *, traffic: float) -> Entry:
    """Set the traffic."""
    experiment = world.find(config)
    if not experiment.is_running:
        raise _refusal(experiment)
    if (reason := config.uneven(traffic, experiment.rolled_back)) is not None:
        raise InvalidRequest(reason, param="traffic")
    return _entry("ramp", config, traffic=traffic)


def stop(config: ExperimentConfig, world: World) -> Entry:
    """End the experiment. This also undoes a `ship`."""
    experiment = world.find(config)
    is_stopped = experiment.status == "stopped" and not experiment.may_ship_again
    if experiment.status == "pending" or is_stopped:
        raise _refusal(experiment)
    return _entry("stop", config)


def ship(config: ExperimentConfig, world: World, *, arm: str) -> Entry:
    """End the experiment and give everybody an arm's variant."""
    experiment = world.find(config)
    names = [candidate.name for candidate in config.arms]
    if arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    if arm in experiment.rolled_back:
        raise Conflict(f"A guardrail rolled back the arm {arm!r}; its variant can only become the `default`.")
    if not experiment.is_running and not experiment.may_ship_again:
        raise _refusal(experiment)
    for name, other in world.experiments.items():
        if other.everybody_gets is not None:
            raise Conflict(
                f"The experiment {name!r} has shipped arm {other.everybody_gets!r}, and everybody can get "
                f"only one variant: roll {name!r} back, or make that variant the `default` and stop {name!r} "
                "or take it out of the config, before you ship another."
            )
    variant = config.variant_of(arm)
    variants = world.declared.variants
    if variants is not None and variant not in variants:
        raise Conflict(
            f"The arm {arm!r} has the variant {variant!r}, which is not in the config: everybody would go on "
            "to get the default. Put it back before you ship it."
        )
    return _entry("ship", config, arm=arm)


def rollback(config: ExperimentConfig, world: World) -> Entry:
    """Give everybody the default again after a `ship`."""
    experiment = world.find(config)
    if experiment.shipped is None:
        raise Conflict(
            f"The experiment {config.name!r} has shipped no arm, so there is nothing to roll back; `stop` "
            "ends an experiment that runs."
        )
    return _entry("rollback", config, detail=f"{experiment.shipped} had been shipped")


def _entry(
    kind: EntryKind,
    config: ExperimentConfig,
    *,
    arm: str | None = None,
    traffic: float | None = None,
    detail: str = "",
) -> Entry:
    return Entry(kind, 0.0, experiment=config.name, arm=arm, traffic=traffic, detail=detail)


def _refusal(experiment: Experiment) -> Conflict:
    """Say why an action is refused: which state the experiment is in."""
    if experiment.status == "shipped":
        why = f"has shipped arm {experiment.shipped!r}; roll it back to undo that."
    elif experiment.status == "pending":
        why = "has not started yet; try again in a moment."
    elif experiment.status == "paused":
        why = "is paused, because the config stands in its way; stop it, or change the config."
    elif experiment.status == "out":
        why = "is out of the config; put it back, or stop it."
    else:
        states = {"stopped": "is stopped already", "rolled_back": "is rolled back"}
        status = states.get(experiment.status, "began with another salt or other arms than the config's")
        why = f"{status}; to go on, give a new experiment another name and salt."
    return Conflict(f"The experiment {experiment.begun.name!r} {why}")
