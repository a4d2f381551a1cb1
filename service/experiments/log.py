"""Computes what is in force from the log: a pure function of its rows.

docs/experiments-data.md says what each kind of row means. `fold` reads the rows in their order and returns
the experiments, each with its state now, its history, and the periods in which its arms exposed units.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Action
from headroom.service.experiments.state import Experiment, Experiments, Period, Source

EntryKind = Literal["config", "start", "ramp", "stop", "ship", "rollback", "delete"]


@dataclass(frozen=True, slots=True)
class Declared:
    """The experiments and variants that a row of the log declares.

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
    report: JSON of the last `Report` before a deletion; it is stored, and not read with the others.
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
    report: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    """The state after the rows so far.

    config: the row of the config in force. time, number: of the last row.
    """

    experiments: Experiments = field(default_factory=dict)
    config: Entry = Entry("config", -math.inf)
    time: float = -math.inf
    number: int = 0

    @property
    def declared(self) -> Declared:
        """The experiments and variants that the config in force declares."""
        return self.config.declared or Declared()

    def find(self, config: ExperimentConfig) -> Experiment:
        """Return the state of an experiment, which is pending if no row declares it."""
        return self.experiments.get(config.name) or Experiment(config)


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
        # Its own time says which of two edits that waited is the later one.
        after = replace(after, config=entry)
        for name, experiment in experiments.items():
            experiments[name] = _redeclared(experiment, world.declared, declared, time)
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


def changed_identity(begun: ExperimentConfig, declared: Declared) -> str | None:
    """Return that a config declares an experiment with another identity than it began with, or None."""
    config = declared.find(begun.name)
    if config is None or identity(config) == identity(begun):
        return None
    return (
        f"{begun.name!r} has begun, so its kind, salt and arms must stay as they are from its start on "
        f"({identity(begun)}); give the changed experiment another name and salt"
    )


def _begin(config: ExperimentConfig, source: Source, entry: Entry, time: float) -> Experiment:
    start = Action(config.name, "start", time, entry.actor, reason=entry.reason, detail=identity(config))
    variants = (entry.declared or Declared()).definitions_of(config)
    return Experiment(config, source, time, variants=variants, history=(start,))


def _redeclared(experiment: Experiment, before: Declared, declared: Declared, time: float) -> Experiment:
    """Return an experiment under another config.

    before: what the config in force until now declares.
    """
    begun = experiment.config
    config = declared.find(begun.name)
    if config is None or identity(config) != identity(begun):
        return experiment
    variants = declared.definitions_of(config)
    new = [name for name, text in variants.items() if experiment.variants.get(name, text) != text]
    changes = []
    if config.traffic != begun.traffic:
        changes.append(f"traffic {begun.traffic:g} to {config.traffic:g}")
    if config.slots != begun.slots:
        changes.append(f"slots {list(begun.slots)} to {list(config.slots)}")
    planned = (before.find(begun.name) or begun).planned_units
    if config.planned_units != planned:
        kept = f"the intervals go by {begun.planned_units}, as at the start"
        changes.append(f"planned_units {planned} to {config.planned_units} ({kept})")
    if new:
        changes.append(f"variants: {', '.join(new)}")
    after = replace(
        experiment,
        source="config",
        config=config.model_copy(update={"planned_units": begun.planned_units}),
        variants={**experiment.variants, **variants},
        variant_changes={**dict.fromkeys(new, time), **experiment.variant_changes},
    )
    return after if experiment.is_over else _noted(after, changes, time)


def _acted(experiment: Experiment, entry: Entry, time: float) -> Experiment:
    """Return an experiment after an action."""
    assert entry.kind != "config"
    treatments = experiment.config.treatments
    action = Action(
        experiment.config.name,
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
        case "delete":
            return replace(after, deleted=time if experiment.deleted is None else experiment.deleted)
        case "ramp":
            after = replace(after, ramped=entry.traffic)
        case "ship":
            after = replace(after, shipped=entry.arm)
        case "stop":
            after = replace(after, shipped=None, is_stopped=True)
        case "rollback" if entry.arm is None:
            after = replace(after, shipped=None, is_stopped=True)
        case "rollback" if entry.arm in treatments:
            after = replace(after, rolled_back=experiment.rolled_back | {entry.arm})
    if after.is_stopped or after.shipped is not None or after.rolled_back.issuperset(treatments):
        after = replace(after, over_since=time, end=min(experiment.end, time))
    return after


def _obstacle(experiment: Experiment, experiments: Experiments, declared: Declared) -> str | None:
    """Return what keeps an experiment from running or shipping, as a clause.

    The config in force must declare an experiment of its own. What was started over HTTP makes way for that.
    """
    config = experiment.config
    clause = changed_identity(config, declared)
    if clause is not None:
        return clause
    if experiment.source == "config":
        return None if declared.find(config.name) else "the config in force does not declare it"
    clause = lacks_variant(experiment, declared.variants)
    if clause is not None or experiment.is_over:
        return clause
    clashes = _clashes(config, experiments, declared)
    return next((f"{field}: {clause}" for field, clause in clashes), None)


def lacks_variant(experiment: Experiment, variants: ScoreKinds | None) -> str | None:
    """Return why variants do not do for an experiment's arms, or its shipped arm, as a clause, or None."""
    if variants is None:
        return None
    config = experiment.config
    if not experiment.is_over:
        return next((f"{field}: {clause}" for field, clause in config.unfit_variants(variants)), None)
    shipped = None if experiment.shipped is None else config.variant_of(experiment.shipped)
    return None if shipped is None or shipped in variants else f"there is no variant {shipped!r}"


def _clashes(
    config: ExperimentConfig, experiments: Experiments, declared: Declared
) -> Iterator[tuple[str, str]]:
    """Yield what of an experiment that was started over HTTP is taken: a field, and a clause.

    Experiments that are not over take their slots and salt: those of the config, and those that started
    before over HTTP.
    """
    is_earlier = True
    for name, other in experiments.items():
        is_earlier = is_earlier and name != config.name
        comes_first = is_earlier if other.source == "http" else declared.find(name) is not None
        if name != config.name and comes_first and not other.is_over:
            yield from config.clashes(other.config)


def _paused(experiment: Experiment, obstacle: str | None, time: float) -> Experiment:
    """Return an experiment with what stands in its way now."""
    if experiment.paused == obstacle:
        return experiment
    changes = []
    if obstacle is not None and experiment.paused is None:
        changes = [f"paused, so units get the default: {obstacle}"]
    elif obstacle is None:
        changes = ["units get their arm again"]
    after = replace(experiment, paused=obstacle)
    is_of_no_effect = experiment.is_over and experiment.shipped is None
    return after if is_of_no_effect else _noted(after, changes, time)


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
    edit = Action(experiment.config.name, "edit", time, "config", detail="; ".join(changes))
    return replace(experiment, history=(*experiment.history, edit))
