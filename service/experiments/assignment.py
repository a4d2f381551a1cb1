"""Assigns units to arms by the contract's rules: slots, then the arm's buckets. An arm may be had as a flag.

If the caller assigns its units itself, its requests name the arm; slots and traffic then do not count.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Literal

from headroom.service.descriptions import documented
from headroom.service.errors import InvalidRequest, NotFound
from headroom.service.experiments.buckets import Span, bucket, is_exposed
from headroom.service.experiments.definition import INTERLEAVED, LAYER_SALT, ExperimentConfig
from headroom.service.experiments.state import Experiment
from headroom.service.sentences import shortened

NO_ARM = "default"
"""The flag's variant for a unit that is in no arm."""


@documented
@dataclass(frozen=True, slots=True)
class Flag:
    """The value of a flag for a unit. Asking for it exposes nobody."""

    key: str
    """The experiment's name."""
    value: str
    """The arm's variant; of an interleaved experiment, control's. Without an arm, the one that scores the
    requests of units that are in no experiment."""
    variant: str
    """The unit's arm: `interleaved` if it sees both, `default` if it is in none."""
    reason: Literal["SPLIT", "DEFAULT", "STATIC", "DISABLED"]
    """`SPLIT`: the unit is in this arm. `DEFAULT`: it does not take part. `STATIC`: the experiment has
    shipped this arm. `DISABLED`: the experiment does not run."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The arm of one request.

    bucket: the unit's. is_chosen: whether the caller chose the arm, whatever the bucket.
    fallback: the control's variant, which answers if this arm fails; None if this is the control.
    interleaved: the experiment, if both of its arms answer the request; `arm` is then INTERLEAVED, `variant`
        the treatment's and `fallback` the control's.
    """

    experiment: str
    arm: str
    variant: str
    bucket: int
    fallback: str | None
    is_chosen: bool = False
    interleaved: ExperimentConfig | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose variants score: this one, or control and treatment if both answer."""
        config = self.interleaved
        return (self.arm,) if config is None else (config.control, *config.treatments)


@dataclass(frozen=True)
class Assigner:
    """The experiments whose arms requests may get. Immutable: a request sees one state from start to end."""

    experiments: tuple[Experiment, ...] = ()

    @cached_property
    def _spans(self) -> dict[str, list[Span]]:
        """The ranges of buckets of each experiment's arms, in order."""
        return {each.config.name: list(each.config.spans.values()) for each in self.experiments}

    @property
    def _names(self) -> list[str]:
        return [each.config.name for each in self.experiments]

    def find(self, name: str) -> Experiment | None:
        """Return the experiment of this name."""
        return next((each for each in self.experiments if each.config.name == name), None)

    def assign(self, unit: str) -> Assigned | None:
        """Return the arm that a unit is exposed to.

        None if the unit is in no running experiment or outside the traffic, or if its arm is rolled back.
        """
        slot = bucket(LAYER_SALT, unit) if self.experiments else -1
        experiment = next((each for each in self.experiments if _has_slot(each, slot)), None)
        if experiment is None or not experiment.is_running:
            return None
        config = experiment.config
        spans = self._spans[config.name]
        position = bucket(config.salt, unit)
        index = bisect_right(spans, position, key=itemgetter(1))
        if not is_exposed(position, spans[index], experiment.traffic):
            return None
        if config.is_interleaved:
            return Assigned(
                config.name,
                INTERLEAVED,
                variant=config.variant_of(config.treatments[0]),
                bucket=position,
                fallback=config.variant_of(config.control),
                interleaved=config,
            )
        arm = config.arms[index].name
        return None if arm in experiment.rolled_back else _in_arm(config, arm, position)

    def choose(self, unit: str, arm: str, name: str | None) -> Assigned | None:
        """Return the arm that a unit's request names.

        None if its experiment does not run, or if the arm is rolled back.
        name: the experiment's; None: the only experiment that has an arm of this name.
        Raises InvalidRequest if there is no such experiment or arm, or if the experiment is interleaved.
        """
        experiment = self._having(arm, name)
        config = experiment.config
        if config.is_interleaved:
            raise InvalidRequest(
                f"the experiment {config.name!r} is interleaved, so each of its units sees both arms; leave "
                "out arm",
                param="arm",
            )
        if not experiment.is_running or arm in experiment.rolled_back:
            return None
        return _in_arm(config, arm, bucket(config.salt, unit), is_chosen=True)

    def _having(self, arm: str, name: str | None) -> Experiment:
        """Return the experiment of this name, which has an arm of that name, or raise InvalidRequest."""
        named = [each for each in self.experiments if name in (None, each.config.name)]
        if not named:
            names = ", ".join(self._names) or "none"
            raise InvalidRequest(
                f"there is no experiment {shortened(name)!r}; there are {names}"
                if name
                else "there is no experiment in the live config",
                param="experiment" if name else "arm",
            )
        having = [each for each in named if arm in {one.name for one in each.config.arms}]
        if not having:
            arms = dict.fromkeys(one.name for each in named for one in each.config.arms)
            raise InvalidRequest(
                f"there is no arm {shortened(arm)!r}; there are {', '.join(arms)}", param="arm"
            )
        if len(having) > 1:
            names = ", ".join(each.config.name for each in having)
            raise InvalidRequest(
                f"is missing, and several experiments have an arm {arm!r}: name one of {names}",
                param="experiment",
            )
        return having[0]

    @property
    def shipped(self) -> str | None:
        """The variant that an experiment has shipped, if any; `rules.check_edit` allows one."""
        for each in self.experiments:
            if each.everybody_gets is not None:
                return each.config.variant_of(each.everybody_gets)
        return None

    def flag(self, name: str, unit: str, default_variant: str) -> Flag:
        """Return a unit's arm in an experiment as a flag.

        default_variant: of requests that are in no experiment.
        Raises NotFound if there is no such experiment.
        """
        experiment = self.find(name)
        if experiment is None:
            known = ", ".join(self._names) or "none"
            raise NotFound(f"There is no experiment {shortened(name)!r} (known: {known}).")
        assigned = self.assign(unit)
        if assigned is not None and assigned.experiment == name:
            of_control = None if assigned.interleaved is None else assigned.fallback
            return Flag(name, of_control or assigned.variant, assigned.arm, "SPLIT")
        arm = experiment.everybody_gets
        if arm is not None:
            return Flag(name, experiment.config.variant_of(arm), arm, "STATIC")
        value = self.shipped or default_variant
        return Flag(name, value, NO_ARM, "DEFAULT" if experiment.is_running else "DISABLED")


def _in_arm(config: ExperimentConfig, arm: str, position: int, *, is_chosen: bool = False) -> Assigned:
    """Return the assignment to an arm of an A/B test."""
    fallback = None if arm == config.control else config.variant_of(config.control)
    return Assigned(config.name, arm, config.variant_of(arm), position, fallback, is_chosen)


def _has_slot(experiment: Experiment, slot: int) -> bool:
    """Return whether a slot is one of the experiment's, which gives its slots up once it is over."""
    start, end = experiment.config.slots
    return start <= slot < end and not experiment.is_over
