"""The arm of a unit as a flag of OpenFeature, so that other parts of a page follow the same arm."""

from dataclasses import dataclass
from typing import Literal

from headroom.service.descriptions import documented
from headroom.service.errors import NotFound
from headroom.service.experiments.live import LiveExperiments
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


def evaluate(experiments: LiveExperiments, default_variant: str, name: str, unit: str) -> Flag:
    """Return a unit's arm in an experiment.

    default_variant: of requests that are in no experiment. Raises NotFound if there is no such experiment.
    """
    assigner = experiments.assigner()
    configs = {config.name: config for config in assigner.experiments}
    if name not in configs:
        known = ", ".join(configs) or "none"
        raise NotFound(f"There is no experiment {shortened(name)!r} (known: {known}).")
    assigned = experiments.route(assigner, unit).assigned
    if assigned is not None and assigned.experiment == name:
        is_interleaved = assigned.interleaved is not None
        value = assigned.fallback if is_interleaved and assigned.fallback is not None else assigned.variant
        return Flag(name, value, assigned.arm, "SPLIT")
    state = experiments.ledger.state(name)
    if state.status == "shipped" and state.shipped is not None:
        return Flag(name, configs[name].variant_of(state.shipped), state.shipped, "STATIC")
    value = assigner.shipped(experiments.ledger.states) or default_variant
    return Flag(name, value, NO_ARM, "DEFAULT" if state.is_running else "DISABLED")
