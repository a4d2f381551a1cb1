"""What is in force, computed from the log: a pure function of its rows.

docs/experiments-data.md says what each kind of row means. `fold` reads the rows in their order and returns
the experiments, each with its state now, its history, and the periods in which its arms exposed units.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from headroom.service.experiments.buckets import NO_BUCKET, ByArm, Span
from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Action

EntryKind = Literal["config", "start", "ramp", "stop", "ship", "rollback", "delete"]
Source = Literal["config", "http"]
Status = Literal["pending", "running", "stopped", "shipped", "rolled_back", "changed", "paused", "out"]


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
class State:
    """The state of one experiment now.

    status: `pending` until a row declares it; `rolled_back` if no treatment arm is left; `out`, `changed` and
        `paused` as rules 2 and 3 of the page say.
    traffic: the exposed share of each arm's range; 0 unless it runs.
    rolled_back: arms whose units get the default, and are not exposed.
    shipped: the arm that everybody gets; None if the experiment has shipped, but is out of the config,
        changed or paused.
    started, ended: Unix seconds; ended: since when no unit is assigned any more.
    deleted: since when its lists, clicks and outcomes are deleted, in Unix seconds.
    paused: what in the config stands in its way, as a clause.
    may_ship_again: whether it is stopped because somebody took its ship back.
    """

    status: Status = "pending"
    traffic: float = 0.0
    rolled_back: frozenset[str] = frozenset()
    shipped: str | None = None
    started: float | None = None
    ended: float | None = None
    deleted: float | None = None
    paused: str | None = None
    may_ship_again: bool = False

    @property
    def is_running(self) -> bool:
        """True while units are assigned."""
        return self.status == "running"

    @property
    def is_over(self) -> bool:
        """True once no unit will be assigned any more, so that others may have its slots."""
        return self.ended is not None or self.status in ("stopped", "shipped", "rolled_back")


IDLE = State()

States = Mapping[str, State]
"""By experiment."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which the same units are exposed, from `since` to `until`, in Unix seconds.

    limits: the bucket after the last exposed one, by arm; an arm that has ended is missing.
    slots: the exposed ones.
    """

    since: float
    limits: ByArm
    slots: Span = ALL_SLOTS
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, as the rows so far have it.

    begun: as its first row declared it. config: as the last one with the same identity did.
    source: the kind of its first row, or `config` once a config declares it.
    is_declared, is_changed: whether the config in force declares it, with another identity.
    over_since: the time of its last stop, ship or rollback, if it is over.
    variants, variant_changes: the definition of each of its variants, and when it was first changed.
    The other fields are those of `State`.
    """

    begun: ExperimentConfig
    config: ExperimentConfig
    source: Source
    started: float
    is_declared: bool = True
    is_changed: bool = False
    ramped: float | None = None
    is_stopped: bool = False
    shipped: str | None = None
    may_ship_again: bool = False
    rolled_back: frozenset[str] = frozenset()
    ended: float | None = None
    over_since: float | None = None
    deleted: float | None = None
    paused: str | None = None
    variants: Mapping[str, str] = field(default_factory=dict)
    variant_changes: Mapping[str, float] = field(default_factory=dict)
    periods: tuple[Period, ...] = ()
    history: tuple[Action, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether it is stopped, has shipped, or has no treatment arm left."""
        is_rolled_back = self.rolled_back.issuperset(self.begun.treatments)
        return self.is_stopped or self.shipped is not None or is_rolled_back

    @property
    def is_in_force(self) -> bool:
        """Whether the config in force lets it run, or ship."""
        is_out = self.source == "config" and not self.is_declared
        return not (is_out or self.is_changed or self.paused is not None)

    @property
    def status(self) -> Status:
        """The state, in one word."""
        if self.paused is not None:
            return "paused"
        if self.shipped is not None:
            return "shipped"
        if self.is_stopped:
            return "stopped"
        if self.is_over:
            return "rolled_back"
        if self.is_changed:
            return "changed"
        return "running" if self.is_in_force else "out"

    @property
    def state(self) -> State:
        """The state."""
        status = self.status
        traffic = self.config.traffic if self.ramped is None else self.ramped
        return State(
            status=status,
            traffic=traffic if status == "running" else 0.0,
            rolled_back=self.rolled_back,
            shipped=self.shipped if self.is_in_force else None,
            started=self.started,
            ended=self.ended,
            deleted=self.deleted,
            paused=self.paused,
            may_ship_again=self.may_ship_again and self.shipped is None,
        )

    @property
    def end(self) -> float:
        """When the last arm ended, in Unix seconds; inf while one runs."""
        return math.inf if self.ended is None else self.ended


@dataclass(frozen=True, slots=True)
class World:
    """What the rows so far say.

    declared, config_version, config_time, config_number: of the config in force. time, number: of the last
    row. superseded: the versions of the configs that were in force before.
    """

    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    declared: Declared = Declared()
    config_version: str | None = None
    config_time: float = -math.inf
    config_number: int = 0
    time: float = -math.inf
    number: int = 0
    superseded: frozenset[str] = frozenset()


EMPTY = World()


def fold(entries: Iterable[Entry]) -> Mapping[str, Experiment]:
    """Return the experiments that the rows of a log lead to, by name, in the order of their start."""
    return replay(EMPTY, entries).experiments


def replay(world: World, entries: Iterable[Entry]) -> World:
    """Return the world after further rows."""
    return reduce(advance, entries, world)


def advance(world: World, entry: Entry) -> World:
    """Return the world after one more row."""
    time = max(world.time, entry.time)  # clocks differ
    experiments = dict(world.experiments)
    declared = world.declared
    config_version = world.config_version
    config_time = world.config_time
    config_number = world.config_number
    superseded = world.superseded
    if entry.kind == "config":
        declared = entry.declared or Declared()
        if config_version is not None:
            superseded |= {config_version}
        config_version = entry.config_version
        config_time = time
        config_number = entry.number
        for name, experiment in experiments.items():
            experiments[name] = _redeclared(experiment, declared, time)
        for config in declared.experiments:
            if config.name not in experiments:
                experiments[config.name] = _begin(config, "config", entry, time)
    elif entry.kind == "start":
        for config in (entry.declared or Declared()).experiments:
            if config.name not in experiments:
                begun = _begin(config, "http", entry, time)
                experiments[config.name] = replace(begun, is_declared=False)
    elif entry.experiment in experiments:
        experiments[entry.experiment] = _acted(experiments[entry.experiment], entry, time)
    obstacles = _obstacles(experiments, declared)
    for name, experiment in experiments.items():
        paused = _paused(experiment, obstacles.get(name), time)
        experiments[name] = _with_period(paused, time)
    return World(
        experiments,
        declared,
        config_version,
        config_time,
        config_number,
        time,
        max(world.number, entry.number),
        superseded,
    )


def identity(config: ExperimentConfig) -> str:
    """Return what must not change while an experiment runs: salt, arms and kind."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    kind = "" if config.kind == "ab" else f"; kind {config.kind}"
    return f"salt {config.salt}; arms {arms}{kind}"


def overlap(one: ExperimentConfig, other: ExperimentConfig) -> str:
    """Say that the slots of two experiments overlap."""
    start, end = one.slots
    other_start, other_end = other.slots
    return f"[{start}, {end}) overlaps [{other_start}, {other_end})"


def _begin(config: ExperimentConfig, source: Source, entry: Entry, time: float) -> Experiment:
    start = Action(config.name, "start", time, entry.actor, reason=entry.reason, detail=identity(config))
    variants = _variants_of(config, entry.declared or Declared())
    return Experiment(config, config, source, time, variants=variants, history=(start,))


def _redeclared(experiment: Experiment, declared: Declared, time: float) -> Experiment:
    """Return an experiment under another config."""
    name = experiment.begun.name
    config = declared.find(name)
    is_changed = config is not None and identity(config) != identity(experiment.begun)
    after = replace(
        experiment,
        is_declared=config is not None,
        is_changed=is_changed,
        source=experiment.source if config is None or is_changed else "config",
    )
    changes = []
    if config is not None and not is_changed:
        variants = _variants_of(config, declared)
        changes = _changes(experiment, config, variants)
        changed = {
            variant: time
            for variant, definition in variants.items()
            if experiment.variants.get(variant, definition) != definition
        }
        after = replace(
            after,
            config=config,
            variants={**experiment.variants, **variants},
            variant_changes={**changed, **experiment.variant_changes},
        )
    if is_changed and config is not None and not experiment.is_changed:
        changes.append(f"declared with {identity(config)}, so units get the default")
    elif experiment.is_in_force and not after.is_in_force:
        changes.append("taken out of the config, so units get the default")
    elif after.is_in_force and not experiment.is_in_force and experiment.paused is None:
        changes.append("units get their arm again")
    if experiment.is_over:
        return after
    return _noted(after, changes, time)


def _acted(experiment: Experiment, entry: Entry, time: float) -> Experiment:
    """Return an experiment after an action."""
    name = experiment.begun.name
    arms = {arm.name for arm in experiment.begun.arms}
    action = Action(
        name,
        "edit" if entry.kind == "config" else entry.kind,
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
        case "rollback" if entry.arm in arms and entry.arm != experiment.begun.control:
            after = replace(after, rolled_back=experiment.rolled_back | {entry.arm})
        case "ship" if entry.arm in arms:
            after = replace(after, shipped=entry.arm)
        case "delete":
            return replace(after, deleted=time if experiment.deleted is None else experiment.deleted)
        case _:
            pass
    if after.is_over:
        after = replace(after, over_since=time, ended=time if experiment.ended is None else experiment.ended)
    return after


def _obstacles(experiments: Mapping[str, Experiment], declared: Declared) -> Mapping[str, str]:
    """Return what in the config stands in the way of experiments that were started over HTTP, by name."""
    found: dict[str, str] = {}
    for name, experiment in experiments.items():
        has_ended = experiment.is_over and experiment.shipped is None
        if experiment.source == "config" or has_ended:
            continue
        clause = _missing_variant(experiment, declared) or _taken_by_config(experiment, experiments, declared)
        if clause is not None:
            found[name] = clause
    return found


def _missing_variant(experiment: Experiment, declared: Declared) -> str | None:
    """Return which variant of an experiment the config lacks, or has with another kind of score."""
    config = experiment.config
    variants = declared.variants
    if variants is None:
        return None
    it = f"{config.name!r}, which was started without a file"
    shipped = experiment.shipped
    needed = [arm.variant for arm in config.arms] if shipped is None else [config.variant_of(shipped)]
    for variant in needed:
        if variant not in variants:
            return f"variants: {variant!r} is not there, and is a variant of {it}"
    reason = config.mixed_scores(variants) if len(needed) > 1 else None
    return None if reason is None else f"variants: {reason}, as those of {it}"


def _taken_by_config(
    experiment: Experiment, experiments: Mapping[str, Experiment], declared: Declared
) -> str | None:
    """Return which experiment of the config has shipped, too, or has a slot or the salt of this one."""
    config = experiment.config
    it = f"{config.name!r}, which was started without a file"
    for index, other in enumerate(declared.experiments):
        if other.name == config.name:
            continue  # declared with another identity, it is `changed`
        of_other = experiments[other.name]
        if experiment.shipped is not None and of_other.shipped is not None:
            return (
                f"experiments[{index}]: it has shipped an arm, as has {it}, and everybody can get only one "
                "variant"
            )
        if experiment.is_over or of_other.is_over:
            continue
        if config.shares_slots(other):
            return f"experiments[{index}].slots: {overlap(other, config)} of {it}"
        if config.salt == other.salt:
            return f"experiments[{index}].salt: {other.salt!r} is the salt of {it}"
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
    limits = _limits(experiment)
    slots = experiment.config.slots if experiment.status == "running" else ALL_SLOTS
    periods = experiment.periods
    if periods:
        last = periods[-1]
        if (last.limits, last.slots) == (limits, slots):
            return experiment
        ended = (replace(last, until=time),) if last.since < time else ()
        periods = (*periods[:-1], *ended)
    return replace(experiment, periods=(*periods, Period(time, limits, slots)))


def _limits(experiment: Experiment) -> ByArm:
    """Return the bucket after the last exposed one, by arm."""
    if experiment.ended is not None:
        return {}
    state = experiment.state
    config = experiment.config
    if not state.is_running:
        return dict.fromkeys(config.exposed(1.0, state.rolled_back), NO_BUCKET)
    exposed = config.exposed(state.traffic, state.rolled_back)
    return {arm: config.spans[arm][0] + buckets for arm, buckets in exposed.items()}


def _noted(experiment: Experiment, changes: list[str], time: float) -> Experiment:
    """Return an experiment with an edit in its history, if there is any change."""
    if not changes:
        return experiment
    edit = Action(experiment.begun.name, "edit", time, "config", detail="; ".join(changes))
    return replace(experiment, history=(*experiment.history, edit))


def _variants_of(config: ExperimentConfig, declared: Declared) -> Mapping[str, str]:
    names = {arm.variant for arm in config.arms}
    return {name: text for name, text in declared.definitions.items() if name in names}


def _changes(experiment: Experiment, config: ExperimentConfig, variants: Mapping[str, str]) -> list[str]:
    """Return what a config declares otherwise than before, as words."""
    before = experiment.config
    changes = []
    if config.traffic != before.traffic:
        changes.append(f"traffic {before.traffic:g} to {config.traffic:g}")
    if config.slots != before.slots:
        changes.append(f"slots {list(before.slots)} to {list(config.slots)}")
    if config.planned_units != before.planned_units:
        changes.append(f"planned_units {before.planned_units} to {config.planned_units}")
    names = [name for name, text in variants.items() if experiment.variants.get(name, text) != text]
    if names:
        changes.append(f"variants: {', '.join(names)}")
    return changes
