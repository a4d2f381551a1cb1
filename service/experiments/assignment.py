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
from headroom.service.experiments.state import Experiments
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
    """The experiments of one live config. Immutable, so that a request sees one config from start to end."""

    experiments: tuple[ExperimentConfig, ...] = ()

    @cached_property
    def _spans(self) -> dict[str, list[Span]]:
        """The ranges of buckets of each experiment's arms, in order."""
        return {config.name: list(config.spans.values()) for config in self.experiments}

    def assign(self, unit: str, experiments: Experiments) -> Assigned | None:
        """Return the arm that a unit is exposed to.

        None if the unit is in no running experiment or outside the traffic, or if its arm is rolled back.
        experiments: their states; one that is missing does not run.
        """
        slot = bucket(LAYER_SALT, unit) if self.experiments else -1
        config = next((each for each in self.experiments if _has_slot(each, slot, experiments)), None)
        state = None if config is None else experiments.get(config.name)
        if config is None or state is None or not state.is_running:
            return None
        spans = self._spans[config.name]
        position = bucket(config.salt, unit)
        index = bisect_right(spans, position, key=itemgetter(1))
        if not is_exposed(position, spans[index], state.traffic):
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
        return None if arm in state.rolled_back else _in_arm(config, arm, position)

    def choose(
        self, unit: str, arm: str, experiment: str | None, experiments: Experiments
    ) -> Assigned | None:
        """Return the arm that a unit's request names.

        None if its experiment does not run, or if the arm is rolled back.
        experiment: its name; None: the only experiment that has an arm of this name.
        Raises InvalidRequest if there is no such experiment or arm, or if the experiment is interleaved.
        """
        config = self._having(arm, experiment)
        if config.is_interleaved:
            raise InvalidRequest(
                f"the experiment {config.name!r} is interleaved, so each of its units sees both arms; leave "
                "out arm",
                param="arm",
            )
        state = experiments.get(config.name)
        if state is None or not state.is_running or arm in state.rolled_back:
            return None
        return _in_arm(config, arm, bucket(config.salt, unit), is_chosen=True)

    def _having(self, arm: str, experiment: str | None) -> ExperimentConfig:
        """Return the experiment of this name, which has an arm of that name, or raise InvalidRequest."""
        named = [config for config in self.experiments if experiment in (None, config.name)]
        if not named:
            names = ", ".join(config.name for config in self.experiments) or "none"
            raise InvalidRequest(
                f"there is no experiment {shortened(experiment)!r}; there are {names}"
                if experiment
                else "there is no experiment in the live config",
                param="experiment" if experiment else "arm",
            )
        having = [config for config in named if arm in {each.name for each in config.arms}]
        if not having:
            arms = dict.fromkeys(each.name for config in named for each in config.arms)
            raise InvalidRequest(
                f"there is no arm {shortened(arm)!r}; there are {', '.join(arms)}", param="arm"
            )
        if len(having) > 1:
            names = ", ".join(config.name for config in having)
            raise InvalidRequest(
                f"is missing, and several experiments have an arm {arm!r}: name one of {names}",
                param="experiment",
            )
        return having[0]

    def shipped(self, experiments: Experiments) -> str | None:
        """Return the variant that an experiment has shipped, if any; `rules.check_edit` allows one."""
        for config in self.experiments:
            state = experiments.get(config.name)
            if state is not None and state.everybody_gets is not None:
                return config.variant_of(state.everybody_gets)
        return None

    def shadowed(self, experiments: Experiments) -> list[ExperimentConfig]:
        """Return the running experiments with a shadow share."""
        return [
            config
            for config in self.experiments
            if config.shadow and config.name in experiments and experiments[config.name].is_running
        ]

    def flag(self, name: str, unit: str, experiments: Experiments, default_variant: str) -> Flag:
        """Return a unit's arm in an experiment as a flag.

        default_variant: of requests that are in no experiment.
        Raises NotFound if there is no such experiment.
        """
        configs = {config.name: config for config in self.experiments}
        if name not in configs:
            known = ", ".join(configs) or "none"
            raise NotFound(f"There is no experiment {shortened(name)!r} (known: {known}).")
        assigned = self.assign(unit, experiments)
        if assigned is not None and assigned.experiment == name:
            of_control = None if assigned.interleaved is None else assigned.fallback
            return Flag(name, of_control or assigned.variant, assigned.arm, "SPLIT")
        state = experiments.get(name)
        if state is not None and state.everybody_gets is not None:
            arm = state.everybody_gets
            return Flag(name, configs[name].variant_of(arm), arm, "STATIC")
        value = self.shipped(experiments) or default_variant
        return Flag(name, value, NO_ARM, "DEFAULT" if state is not None and state.is_running else "DISABLED")


def _in_arm(config: ExperimentConfig, arm: str, position: int, *, is_chosen: bool = False) -> Assigned:
    """Return the assignment to an arm of an A/B test."""
    fallback = None if arm == config.control else config.variant_of(config.control)
    return Assigned(config.name, arm, config.variant_of(arm), position, fallback, is_chosen)


def _has_slot(config: ExperimentConfig, slot: int, experiments: Experiments) -> bool:
    """Return whether a slot is one of the experiment's, which gives its slots up once it is over."""
    start, end = config.slots
    if not start <= slot < end:
        return False
    state = experiments.get(config.name)
    return state is None or not state.is_over
