"""The declaration of an experiment in the live config. An impossible one is refused with one sentence."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, Strict, StringConstraints, model_validator

from headroom.service.experiments.buckets import BUCKETS, ByArm, Span, exposed_buckets, ranges
from headroom.service.fields import WHOLE_NUMBER, ConfigName, ConfigPart, Salt, Share

LAYER_SALT = "layer"
"""The salt of the slots: units are spread over them by SHA-256("layer:{unit}")."""

ALL_SLOTS: Span = (0, 10_000)

MAX_UNEVEN = 0.005
"""How far an arm's share of the exposed buckets may be from its share of all, as a share of the latter."""

ORIGINAL = "original"
"""The variant that is always there: the titles in the order in which they came, scored by nobody."""

INTERLEAVED = "interleaved"
"""The arm of all units of an interleaved experiment, since each of them sees both arms."""

Kind = Literal["ab", "interleave"]
ScoreKinds = Mapping[str, str | None]
"""By variant, what score it gives, as a phrase; None: the variant is `original`, which gives none."""
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]
MAX_UNITS = 1_000_000_000_000

_Slot = Annotated[int, Field(ge=0, le=10_000), WHOLE_NUMBER]


class Metric(ConfigPart):
    """A metric over units, computed from the values of their outcomes."""

    name: MetricName
    """Name of the outcomes that are added up per unit."""
    kind: Literal["mean", "proportion", "ratio"] = "mean"
    """`mean`: mean of the units' sums. `proportion`: share of units with a sum above 0.
    `ratio`: sum over all units divided by that of `denominator`, such as clicks over impressions."""
    denominator: MetricName | None = None
    """The outcomes that a `ratio` divides by."""
    better: Literal["higher", "lower"] = "higher"
    """Which values are better."""
    margin: float | None = Field(None, gt=0, allow_inf_nan=False)
    """A variant is good enough if it is worse by less than this. Unset: the question is only whether there is
    a difference. With `kind: interleave` it is one of preference, in (0, 1]."""
    relative: bool = True
    """The margin is a share of control's value; `false`: it has the metric's own unit."""
    covariate: MetricName | None = None
    """A metric (maybe this one) whose values before a unit's exposure explain some variance (CUPED)."""
    window_hours: float | None = Field(None, gt=0, le=24 * 365)
    """Hours after a unit's exposure in which outcomes count. A unit counts once they are over. Unset: all."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "ratio") != (self.denominator is not None):
            raise ValueError("denominator belongs to kind: ratio, and a ratio needs one")
        if self.denominator == self.name:
            raise ValueError("denominator must be another metric")
        return self

    @property
    def sources(self) -> set[str]:
        """The names of the outcomes that the metric is computed from."""
        return {name for name in (self.name, self.denominator, self.covariate) if name is not None}

    @property
    def window_s(self) -> float | None:
        """The window in seconds; None without one."""
        return None if self.window_hours is None else self.window_hours * 3600

    @property
    def sign(self) -> int:
        """Return 1 if more is better, -1 if less is better."""
        return 1 if self.better == "higher" else -1


class ArmConfig(ConfigPart):
    """An arm: the variant that its units get."""

    name: ConfigName
    """Name in the report. The arm `control`, or else the first, is control."""
    variant: ConfigName
    """Name of one of `variants`, or `original`: the titles in the order in which they came."""
    weight: Annotated[int, Field(ge=1, le=1_000_000), WHOLE_NUMBER] = 1
    """The arm's part of the units, in proportion to the other arms' weights."""


class Guardrails(ConfigPart):
    """The limits that take an arm back to control automatically. Null switches a limit off."""

    error_rate: Annotated[float, Field(gt=0, lt=1)] | None = 0.02
    """Share of the arm's requests that its variant may fail, over control's share. (Control's variant answers
    these.)"""
    p99_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Milliseconds from the read request to its answer, waiting and a fallback to control's variant included.
    At most 1 in 100 of the arm's requests may take longer, over control's share. An interleaved request takes
    the same time for both arms, so there this limit counts without a comparison."""
    score_shift: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Limit of the population stability index of the arm's scores against control's."""
    min_requests: Annotated[int, Field(ge=10, le=1_000_000), WHOLE_NUMBER] = 50
    """Nothing is decided about an arm with fewer requests in the last minute on all replicas together, and
    nothing about the scores of one with fewer units."""


class ExperimentConfig(ConfigPart):
    """An experiment: units are spread over arms, and metrics compare the arms."""

    name: ConfigName
    """Name in answers, outcomes and reports."""
    kind: Kind = "ab"
    """`ab`: each unit gets one arm. `interleave`: each unit gets lists drawn from the rankings of both arms,
    and its clicks say which arm it prefers."""
    salt: Salt
    """Any text that no other experiment uses: it decides who gets which arm."""
    arms: Annotated[tuple[ArmConfig, ...], Field(min_length=2, max_length=10, strict=False)]
    """2 to 10 arms; with `kind: interleave`, 2 of the same weight."""
    traffic: Share = 1.0
    """Share of each arm's units that takes part, until somebody ramps by hand."""
    slots: Annotated[tuple[_Slot, _Slot], Strict(False)] = ALL_SLOTS
    """[x, y) of the 10,000 slots: experiments whose slots do not overlap share no unit."""
    shadow: Share = 0.0
    """Share of the requests that are scored under every arm, after their answer."""
    guardrails: Guardrails = Guardrails()
    """What takes an arm back to control. Fields that are left out keep their default."""
    metrics: Annotated[tuple[Metric, ...], Field(max_length=50, strict=False)] = ()
    """What the report compares. The first one decides."""
    planned_units: Annotated[int, Field(ge=1, le=MAX_UNITS), WHOLE_NUMBER] = 10_000
    """How many units the experiment is planned for, as `headroom experiment plan` says: the intervals are
    narrowest there. With `kind: interleave`, units that click a title of one arm."""

    @property
    def control(self) -> str:
        """The arm that the others are compared with and fall back to: `control`, or else the first arm."""
        names = [arm.name for arm in self.arms]
        return "control" if "control" in names else names[0]

    @property
    def treatments(self) -> tuple[str, ...]:
        """All arms except control."""
        return tuple(arm.name for arm in self.arms if arm.name != self.control)

    @property
    def against_order(self) -> tuple[str, ...]:
        """The treatments that are `original` or are compared with it; their scores cannot be compared."""
        if self.variant_of(self.control) == ORIGINAL:
            return self.treatments
        return tuple(arm for arm in self.treatments if self.variant_of(arm) == ORIGINAL)

    @property
    def is_interleaved(self) -> bool:
        """Whether each unit sees both arms."""
        return self.kind == "interleave"

    @property
    def spans(self) -> dict[str, Span]:
        """The range [a, b) of buckets of each arm; of an interleaved experiment, all buckets for both."""
        if self.is_interleaved:
            return {INTERLEAVED: (0, BUCKETS)}
        names = [arm.name for arm in self.arms]
        return dict(zip(names, ranges([arm.weight for arm in self.arms]), strict=True))

    def exposed(self, traffic: float, rolled_back: Collection[str] = ()) -> dict[str, int]:
        """Return how many buckets of each arm a share of traffic exposes, without the rolled back arms.

        An interleaved experiment exposes none once an arm is rolled back.
        """
        if self.is_interleaved and rolled_back:
            return {}
        return {
            arm: exposed_buckets(end - start, traffic)
            for arm, (start, end) in self.spans.items()
            if arm not in rolled_back
        }

    def uneven(self, traffic: float, rolled_back: Collection[str] = ()) -> str | None:
        """Return why a share of traffic is refused, as a clause; None if all arms get their share of units.

        In other shares, one arm would have more early units than another once the traffic rises, and early
        units differ from late ones.
        """
        exposed = self.exposed(traffic, rolled_back)
        widths = self.exposed(1.0, rolled_back)
        if self.is_interleaved and 0 < traffic < 1 / BUCKETS:
            return f"a traffic of {traffic:g} exposes none of the {BUCKETS:,} buckets; give 0, or 0.0001 to 1"
        if self.is_interleaved:
            return None
        if traffic == 0 or _is_even(exposed, widths):
            return None  # a traffic of 0 does shadow scoring only
        larger = (step / BUCKETS for step in range(math.ceil(traffic * BUCKETS), BUCKETS + 1))
        next_even = next(share for share in larger if _is_even(self.exposed(share, rolled_back), widths))
        return (
            f"a traffic of {traffic:g} exposes {_ratio(exposed)} of the {_ratio(widths)} buckets of the arms "
            f"{', '.join(exposed)}; {next_even:g} is the next that exposes the same share of each"
        )

    def clashes(self, other: "ExperimentConfig") -> Iterator[tuple[str, str]]:
        """Yield each field that keeps this and another experiment from running at once, and why, as a clause.

        Experiments that share a slot would share units, and with one salt they would not draw independently.
        """
        start, end = self.slots
        other_start, other_end = other.slots
        if start < other_end and other_start < end:
            yield "slots", f"[{start}, {end}) overlaps [{other_start}, {other_end}) of {other.name!r}"
        if self.salt == other.salt:
            yield "salt", f"{self.salt!r} is the salt of {other.name!r}"

    def unknown_variants(self, variants: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the field of each variant that is not one of `variants`, and a clause that says so."""
        for index, arm in enumerate(self.arms):
            if arm.variant not in variants:
                names = ", ".join(variants)
                yield f"arms[{index}].variant", f"there is no variant {arm.variant!r}; there are {names}"

    def unfit_variants(self, score_kinds: ScoreKinds) -> Iterator[tuple[str, str]]:
        """Yield the field and a clause for each variant that is not there, or else for mixed scores.

        score_kinds: of all variants.
        """
        yield from self.unknown_variants(score_kinds)
        is_complete = all(arm.variant in score_kinds for arm in self.arms)
        reason = self.mixed_scores(score_kinds) if is_complete else None
        if reason is not None:
            yield "arms", reason

    def mixed_scores(self, score_kinds: ScoreKinds) -> str | None:
        """Return why the experiment cannot do with the arms' scores what it declares, as a clause, or None.

        score_kinds: of all variants.
        """
        without = next((arm.variant for arm in self.arms if score_kinds[arm.variant] is None), None)
        if without is not None and self.guardrails.score_shift is not None:
            return f"guardrails.score_shift compares scores, and {without!r} gives none; leave it out"
        if not self.is_interleaved:
            return None
        first, second = (arm.variant for arm in self.arms)
        if not differ(score_kinds[first], score_kinds[second]):
            return None
        return (
            f"{first} gives {score_kinds[first]}, but {second} gives {score_kinds[second]}; the arms of an "
            "interleaved experiment must give the same"
        )

    def variant_of(self, arm: str) -> str:
        """Return the variant of an arm. Raises KeyError if there is no such arm."""
        return {candidate.name: candidate.variant for candidate in self.arms}[arm]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.salt == LAYER_SALT:
            raise ValueError(f"salt: {LAYER_SALT!r} is the salt of the slots; give another")
        check_unique("arms", [arm.name for arm in self.arms])
        check_unique("metrics", [metric.name for metric in self.metrics])
        if self.is_interleaved:
            _check_arms_of_interleaving(self.arms)
        for index, metric in enumerate(self.metrics):
            check = _check_metric_of_interleaving if self.is_interleaved else _check_margin
            check(f"metrics[{index}]", metric)
        for name, (start, end) in self.spans.items():
            if start == end:
                raise ValueError(f"arms: {name!r} gets none of the {BUCKETS:,} buckets; give it more weight")
        start, end = self.slots
        if start >= end:
            raise ValueError(f"slots: [{start}, {end}) is empty; give [x, y) with 0 <= x < y <= 10000")
        if (reason := self.uneven(self.traffic)) is not None:
            raise ValueError(f"traffic: {reason}")
        return self


def differ(first: str | None, second: str | None) -> bool:
    """Return whether two variants give different kinds of score; None: the variant gives none."""
    return None not in (first, second) and first != second


def faults_together(experiments: Sequence[ExperimentConfig], variants: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each fault of experiments against each other and the variants."""
    yield from doubled("experiments", [experiment.name for experiment in experiments])
    for experiment_index, experiment in enumerate(experiments):
        prefix = f"experiments[{experiment_index}]"
        for field, clause in experiment.unknown_variants(variants):
            yield f"{prefix}.{field}: {clause}"
        for other in experiments[:experiment_index]:
            for field, clause in experiment.clashes(other):
                yield (
                    f"{prefix}.{field}: {clause}, which keeps its slots and salt as long as it is in the "
                    "config, also after a ship or a stop; give this one its own or, if "
                    f"{other.name!r} is over, make the variant that it shipped the `default` and take it out"
                )


def doubled(field: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each name that is there twice."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"{field}: two are called {name!r}"


def check_unique(field: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name is there twice."""
    for fault in doubled(field, names):
        raise ValueError(fault)


def _check_margin(field: str, metric: Metric) -> None:
    """Raise ValueError if a relative margin is no share."""
    if metric.relative and metric.margin is not None and metric.margin >= 1:
        raise ValueError(
            f"{field}.margin: a relative margin is a share of control's value, below 1 (0.02 is 2 %)"
        )


def _check_metric_of_interleaving(field: str, metric: Metric) -> None:
    """Raise ValueError if a metric has what an interleaved experiment does not, or a margin over 1."""
    for name in ("kind", "denominator", "better", "relative", "covariate"):
        value = getattr(metric, name)
        if value != Metric.model_fields[name].default:
            raise ValueError(
                f"{field}.{name}: an interleaved experiment counts the clicks on each arm's titles, so its "
                f"metrics have a name, a margin and window_hours, and no {name}"
            )
    if metric.margin is not None and metric.margin > 1:
        raise ValueError(
            f"{field}.margin: {metric.margin:g} is over 1; a preference is in [-1, 1], its margin in (0, 1]"
        )


def _check_arms_of_interleaving(arms: Sequence[ArmConfig]) -> None:
    """Raise ValueError unless these are two arms of the same weight."""
    if len(arms) != 2:
        raise ValueError(
            f"arms: an interleaved experiment draws its lists from exactly 2 arms, not {len(arms)}"
        )
    if arms[0].weight != arms[1].weight:
        raise ValueError(
            f"arms: an interleaved experiment shows both arms to every unit, so their weights are equal, not "
            f"{arms[0].weight} and {arms[1].weight}; leave them out"
        )


def _is_even(exposed: ByArm, widths: ByArm) -> bool:
    """Return whether each arm's share of the exposed buckets is about its share of all. Both are by arm."""
    traffic = sum(exposed.values()) / sum(widths.values())
    return traffic > 0 and all(
        abs(exposed[arm] / (traffic * width) - 1) <= MAX_UNEVEN for arm, width in widths.items()
    )


def _ratio(buckets: ByArm) -> str:
    return " : ".join(f"{number:,}" for number in buckets.values())
