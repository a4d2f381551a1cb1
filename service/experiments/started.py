"""Experiments that were started without a file, and how they get along with those of the config.

The database holds them. The config rules: an experiment of the config has its name and slots in any case. So
an edit that stands in the way of one that was started without a file is refused while the service runs. A
replica that starts with such a config takes it, and pauses the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headroom.service.errors import Conflict, InvalidRequest
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Log
from headroom.service.experiments.state import IDLE, Standings

Configs = tuple[ExperimentConfig, ...]

MAX_OPEN = 64
"""Experiments without a file that are not stopped."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A part of a config that stands in the way of an experiment that was started without a file.

    name: the experiment's. field: of the config. why: a clause.
    """

    name: str
    field: str
    why: str

    @property
    def text(self) -> str:
        """The field and the clause."""
        return f"{self.field}: {self.why}"


def merged(declared: Configs, started: Sequence[ExperimentConfig]) -> Configs:
    """Return the experiments of the config, and those that were started without a file under other names."""
    names = {config.name for config in declared}
    return (*declared, *(config for config in started if config.name not in names))


def obstacles(
    declared: Configs,
    started: Sequence[ExperimentConfig],
    standings: Standings,
    variants: ScoreKinds | None,
) -> Iterator[Obstacle]:
    """Yield what in a config stands in the way of experiments that were started without a file.

    declared, variants: of the config; None: any variant exists. standings: of all experiments; one that is
    missing is new, and one that is over stands in nobody's way.
    """
    for config in started:
        standing = standings.get(config.name, IDLE)
        it = f"{config.name!r}, which was started without a file"
        if standing.shipped is not None:
            needed = [config.variant_of(standing.shipped)]
        else:
            needed = [] if standing.is_over else [arm.variant for arm in config.arms]
        for variant in needed:
            if variants is not None and variant not in variants:
                yield Obstacle(config.name, "variants", f"{variant!r} is not there, and is a variant of {it}")
        are_there = variants is not None and len(needed) > 1 and variants.keys() >= set(needed)
        if are_there and (reason := config.mixed_scores(variants or {})) is not None:
            yield Obstacle(config.name, "variants", f"{reason}, as those of {it}")
        for index, other in enumerate(declared):
            field = f"experiments[{index}]"
            other_standing = standings.get(other.name, IDLE)
            if standing.shipped is not None and other_standing.shipped is not None:
                why = f"it has shipped an arm, as has {it}, and everybody can get only one variant"
                yield Obstacle(config.name, field, why)
            if standing.is_over or other_standing.is_over:
                continue
            if config.shares_slots(other):
                yield Obstacle(config.name, f"{field}.slots", f"{_overlap(other, config)} of {it}")
            if config.salt == other.salt:
                yield Obstacle(config.name, f"{field}.salt", f"{other.salt!r} is the salt of {it}")


def check_variants(config: ExperimentConfig, variants: ScoreKinds) -> None:
    """Raise InvalidRequest if an arm's variant is none of these, or the salt is that of the slots.

    Also if the arms are to be interleaved and give different kinds of score.
    """
    if config.salt == LAYER_SALT:
        raise InvalidRequest(f"{LAYER_SALT!r} is the salt of the slots; give another", param="salt")
    for index, arm in enumerate(config.arms):
        if arm.variant not in variants:
            raise InvalidRequest(
                f"there is no variant {arm.variant!r}; there are {', '.join(variants)}",
                param=f"arms[{index}].variant",
            )
    if (reason := config.mixed_scores(variants)) is not None:
        raise InvalidRequest(reason, param="arms")


def check_start(
    config: ExperimentConfig,
    declared: Configs,
    started: Sequence[ExperimentConfig],
    log: Log,
    standings: Standings,
) -> None:
    """Raise Conflict if an experiment cannot start now without a file.

    declared: of the config. started: without a file, and not stopped. log: holds what there is of this name.
    standings: of both.
    """
    name = config.name
    if any(other.name == name for other in declared):
        raise Conflict(f"name: {name!r} is an experiment of the config; give this one another name.")
    if any(action.experiment == name for action in log):
        raise Conflict(
            f"name: there was an experiment {name!r} already, and its log stays; give this one another name."
        )
    if len(started) >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} experiments that were started without a file are not stopped; stop one.")
    for other in merged(declared, started):
        standing = standings.get(other.name, IDLE)
        if standing.is_over:
            continue
        if config.shares_slots(other):
            raise Conflict(
                f"slots: {_overlap(config, other)} of {other.name!r}, which is {standing.status}; give this "
                f"one other slots, or stop {other.name!r} first."
            )
        if config.salt == other.salt:
            raise Conflict(
                f"salt: {config.salt!r} is the salt of {other.name!r}, which is {standing.status}; give this "
                "one another, so that the two draw independently."
            )


def _overlap(one: ExperimentConfig, other: ExperimentConfig) -> str:
    start, end = one.slots
    other_start, other_end = other.slots
    return f"[{start}, {end}) overlaps [{other_start}, {other_end})"
