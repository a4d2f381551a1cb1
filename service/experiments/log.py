"""What is in force, computed from the log: a pure function of its rows.

docs/experiments-data.md says what each kind of row means. `fold` reads the rows in their order and returns
the experiments, each with its state now, its history, and the periods in which its arms exposed units.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Action
from headroom.service.experiments.state import Experiment, Experiments, Period, Source

EntryKind = Literal["config", "start", "ramp", "stop", "ship", "rollback", "delete"]


@dataclass(frozen=True, slots=True)
class Declared:
    """What a row of the log declares.

    experiments: a config's, in its order, or the one that was started over HTTP.
    variants: the kind of score of each variant of the config, by its name; None: any variant exists.
    definitions: what each variant computes with, by its name: a text that changes if that does.
    """

    experiments: tuple[ExperimentConfig, ...] = ()
    variants: ScoreKinds | None = None
    definitions: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> ExperimentConfig | None:
        """Return the experiment of this name."""
        return next((config for config in self.experiments if config.name == name), None)

    def definitions_of(self, config: ExperimentConfig) -> Mapping[str, str]:
        """Return the definitions of an experiment's variants."""
        names = {arm.variant for arm in config.arms}
        return {name: text for name, text in self.definitions.items() if name in names}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the log. The fields are those of the table; `Action` says what the shared ones mean.

    experiment: "" for a config. declared: of a config or a start. number: 0 before it is stored.
    """

    kind: EntryKind
    time: float
    actor: str = "config"
    experiment: str = ""
    config_version: str = ""
    arm: str | None = None
    traffic: float | None = None
    reason: str = ""
    detail: str = ""
    declared: Declared | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """What the rows so far say.

    config: the row of the config in force. superseded: the versions of the configs that were before.
    time, number: of the last row.
    """

    experiments: Experiments = field(default_factory=dict)
    config: Entry = Entry("config", -math.inf)
    superseded: frozenset[str] = frozenset()
    time: float = -math.inf
    number: int = 0

    @property
    def declared(self) -> Declared:
        """What the config in force declares."""
        return self.config.declared or Declared()

    def find(self, config: ExperimentConfig) -> Experiment:
        """Return the state of an experiment, which is pending if no row declares it."""
        return self.experiments.get(config.name) or Experiment(config, config)


EMPTY = World()


def fold(entries: Iterable[Entry]) -> Experiments:
    """Return the experiments that the rows of a log lead to, by name, in the order of their start."""
    return replay(EMPTY, entries).experiments


def replay(world: World, entries: Iterable[Entry]) -> World:
    """Return the world after further rows."""
    return reduce(advance, entries, world)


def advance(world: World, entry: Entry) -> World:
    """Return the world after one more row."""
    time = max(world.time, entry.time)  # clocks differ
    experiments = dict(world.experiments)
    after = replace(world, time=time, number=max(world.number, entry.number), experiments=experiments)
    declared = entry.declared or Declared()
    if entry.kind == "config":
        after = replace(
            after,
            config=replace(entry, time=time),
            superseded=world.superseded | {world.config.config_version},
        )
        for name, experiment in experiments.items():
            experiments[name] = _redeclared(experiment, declared, time)
    if entry.kind in ("config", "start"):
        source: Source = "config" if entry.kind == "config" else "http"
        for config in declared.experiments:
            if config.name not in experiments:
                experiments[config.name] = _begin(config, source, entry, time)
    elif entry.experiment in experiments:
        experiments[entry.experiment] = _acted(experiments[entry.experiment], entry, time)
    for name, experiment in experiments.items():
        paused = _paused(experiment, _obstacle(experiment, experiments, after.declared), time)
        experiments[name] = _with_period(paused, time)
    return after


def identity(config: ExperimentConfig) -> str:
    """Return what must not change while an experiment runs: salt, arms and kind."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    kind = "" if config.kind == "ab" else f"; kind {config.kind}"
    return f"salt {config.salt}; arms {arms}{kind}"


def _begin(config: ExperimentConfig, source: Source, entry: Entry, time: float) -> Experiment:
    start = Action(config.name, "start", time, entry.actor, reason=entry.reason, detail=identity(config))
    variants = (entry.declared or Declared()).definitions_of(config)
    return Experiment(
        config, config, source, time, is_declared=source == "config", variants=variants, history=(start,)
    )


def _redeclared(experiment: Experiment, declared: Declared, time: float) -> Experiment:
    """Return an experiment under another config."""
    config = declared.find(experiment.begun.name)
    is_changed = config is not None and identity(config) != identity(experiment.begun)
    after = replace(experiment, is_declared=config is not None, is_changed=is_changed)
    changes = []
    if config is not None and not is_changed:
        variants = declared.definitions_of(config)
        new = [name for name, text in variants.items() if experiment.variants.get(name, text) != text]
        changes = _changes(experiment.config, config)
        changes += [f"variants: {', '.join(new)}"] if new else []
        after = replace(
            after,
            source="config",
            config=config,
            variants={**experiment.variants, **variants},
            variant_changes={**dict.fromkeys(new, time), **experiment.variant_changes},
        )
    if is_changed and config is not None and not experiment.is_changed:
        changes.append(f"declared with {identity(config)}, so units get the default")
    elif experiment.is_in_force and not after.is_in_force:
        changes.append("taken out of the config, so units get the default")
    elif after.is_in_force and not experiment.is_in_force and experiment.paused is None:
        changes.append("units get their arm again")
    return after if experiment.is_over else _noted(after, changes, time)


def _changes(before: ExperimentConfig, config: ExperimentConfig) -> list[str]:
    """Return what a config declares otherwise than before, as words."""
    changes = []
    if config.traffic != before.traffic:
        changes.append(f"traffic {before.traffic:g} to {config.traffic:g}")
    if config.slots != before.slots:
        changes.append(f"slots {list(before.slots)} to {list(config.slots)}")
    if config.planned_units != before.planned_units:
        changes.append(f"planned_units {before.planned_units} to {config.planned_units}")
    return changes


def _acted(experiment: Experiment, entry: Entry, time: float) -> Experiment:
    """Return an experiment after an action."""
    assert entry.kind != "config"
    begun = experiment.begun
    action = Action(
        begun.name,
        entry.kind,
        time,
        entry.actor,
        arm=entry.arm,
        traffic=entry.traffic,
        reason=entry.reason,
        detail=entry.detail,
    )
    after = replace(experiment, history=(*experiment.history, action))
    match entry.kind:
        case "ramp" if entry.traffic is not None:
            after = replace(after, ramped=entry.traffic)
        case "stop":
            after = replace(after, shipped=None, is_stopped=True, may_ship_again=False)
        case "rollback" if entry.arm is None:
            after = replace(after, shipped=None, is_stopped=True, may_ship_again=True)
        case "rollback" if entry.arm in begun.treatments:
            after = replace(after, rolled_back=experiment.rolled_back | {entry.arm})
        case "ship" if entry.arm in {arm.name for arm in begun.arms}:
            after = replace(after, shipped=entry.arm, may_ship_again=False)
        case "delete":
            return replace(after, deleted=time if experiment.deleted is None else experiment.deleted)
        case _:
            pass
    is_rolled_back = after.rolled_back.issuperset(begun.treatments)
    if after.is_stopped or after.shipped is not None or is_rolled_back:
        after = replace(after, over_since=time, ended=time if experiment.ended is None else experiment.ended)
    return after


def _obstacle(experiment: Experiment, experiments: Experiments, declared: Declared) -> str | None:
    """Return what in the config stands in the way of an experiment that was started over HTTP."""
    if experiment.source == "config" or (experiment.is_over and experiment.shipped is None):
        return None
    it = f"{experiment.begun.name!r}, which was started without a file"
    clause = _missing_variant(experiment, declared, it)
    return clause or _taken_by_config(experiment, experiments, declared, it)


def _missing_variant(experiment: Experiment, declared: Declared, it: str) -> str | None:
    """Return which variant of an experiment the config lacks, or has with another kind of score."""
    config = experiment.config
    variants = declared.variants
    if variants is None:
        return None
    shipped = experiment.shipped
    needed = [arm.variant for arm in config.arms] if shipped is None else [config.variant_of(shipped)]
    for variant in needed:
        if variant not in variants:
            return f"variants: {variant!r} is not there, and is a variant of {it}"
    reason = config.mixed_scores(variants) if len(needed) > 1 else None
    return None if reason is None else f"variants: {reason}, as those of {it}"


def _taken_by_config(
    experiment: Experiment, experiments: Experiments, declared: Declared, it: str
) -> str | None:
    """Return which experiment of the config has shipped, too, or has a slot or the salt of this one."""
    for index, other in enumerate(declared.experiments):
        if other.name == experiment.begun.name:
            continue  # declared with another identity, it is `changed`
        of_other = experiments[other.name]
        if experiment.shipped is not None and of_other.shipped is not None:
            return (
                f"experiments[{index}]: it has shipped an arm, as has {it}, and everybody can get only one "
                "variant"
            )
        if experiment.is_over or of_other.is_over:
            continue
        for field_name, clause in other.clashes(experiment.config):
            return f"experiments[{index}].{field_name}: {clause} of {it}"
    return None


def _paused(experiment: Experiment, obstacle: str | None, time: float) -> Experiment:
    """Return an experiment with what stands in its way now."""
    if experiment.paused == obstacle:
        return experiment
    changes = []
    if obstacle is not None and experiment.paused is None:
        changes = [f"paused, so units get the default: {obstacle}"]
    elif obstacle is None and not experiment.is_stopped:
        changes = ["units get their arm again"]
    return _noted(replace(experiment, paused=obstacle), changes, time)


def _with_period(experiment: Experiment, time: float) -> Experiment:
    """Return an experiment whose last period is that of its present state."""
    limits = experiment.limits
    slots = experiment.config.slots if experiment.is_running else ALL_SLOTS
    periods = experiment.periods
    if periods:
        last = periods[-1]
        if (last.limits, last.slots) == (limits, slots):
            return experiment
        ended = (replace(last, until=time),) if last.since < time else ()
        periods = (*periods[:-1], *ended)
    return replace(experiment, periods=(*periods, Period(time, limits, slots)))


def _noted(experiment: Experiment, changes: list[str], time: float) -> Experiment:
    """Return an experiment with an edit in its history, if there is any change."""
    if not changes:
        return experiment
    edit = Action(experiment.begun.name, "edit", time, "config", detail="; ".join(changes))
    return replace(experiment, history=(*experiment.history, edit))
