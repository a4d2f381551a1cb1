"""Whether a model is shown to lose less than a margin against another one, on the same queries.

This is the one test of `evaluate`, `study search`, `prune --recover`, `quantize` and `distil`; `study single`
and `study layers` correct its p-values for many masks (Holm 1979). A claim needs three things of every
metric that is tested: its one-sided bound lies above −margin; the bound counts queries that are not in the
sample (headroom.models.quality.bootstrap says how); and the first model is shown to be better than chance,
because a model without skill has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headroom.models.arrays import Floats
from headroom.models.files import Json
from headroom.models.numbers import fixed, number, rounded
from headroom.models.quality.bootstrap import (
    ERROR_RATE,
    MIN_QUERIES,
    Estimate,
    Interval,
    MetricDraws,
    estimate_of,
    minimum_margin,
    minimum_queries,
    queries_needed,
)
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.metrics import NAMES

MARGIN = 0.02
"""The fall of a metric that is accepted, if nobody says another one."""

RESAMPLES = 2000
SEED = 0
"""Those of the bootstrap that judges a network: on the same scores each command says the same."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The change of a metric from one model to another.

    change: with its 95 % interval. bound: one-sided, at the error rate ERROR_RATE; −inf on too few queries
    for an interval. margin: the fall that is accepted. queries: how many have the metric. queries_needed: how
    many, with and without the metric, would show it of a model that loses nothing; None: not known.
    """

    change: Interval
    bound: float
    margin: float
    queries: int
    queries_needed: int | None

    @property
    def excluded(self) -> bool:
        """Return whether a fall of the margin or more is excluded."""
        return self.bound > -self.margin


def loss_of(change: Estimate, margin: float, *, queries: int) -> Loss:
    """Test one metric. queries: how many there are, with and without the metric."""
    needed = queries_needed(change, queries=queries, margin=margin)
    return Loss(change.interval(), change.lower_bound(ERROR_RATE), margin, change.queries, needed)


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """The outcome of the test of one model against another.

    losses: by metric. skill: by metric, how far the first model is above chance; of NDCG@10 chance is a
    random order, of QWK and accuracy a kappa of 0. queries: how many there are. tested: False if an earlier
    model of a sequence failed, so that this one could not pass.
    """

    losses: dict[str, Loss]
    skill: dict[str, Interval]
    margin: float
    queries: int
    tested: bool = True

    @property
    def has_skill(self) -> bool:
        """Return whether the first model is shown to be better than chance in each metric."""
        return all(interval.is_above(0) for interval in self.skill.values())

    @property
    def passed(self) -> bool:
        """Return whether it is shown that each metric falls by less than the margin."""
        excluded = all(loss.excluded for loss in self.losses.values())
        return self.tested and self.has_skill and bool(self.losses) and excluded

    @property
    def queries_that_count(self) -> int:
        """Return how many queries the claim rests on: those of the metric that fewest have."""
        return min((loss.queries for loss in self.losses.values()), default=0)

    @property
    def queries_needed(self) -> int | None:
        """Return the largest number of queries that a metric needs; None if one's is not known."""
        return largest([loss.queries_needed for loss in self.losses.values()])

    def sentence(self, name: str) -> str:
        """Say what the second model loses, with the interval, and what that shows.

        name: of the second model, as a subject.
        """
        basis = on_queries(self.queries_that_count, self.queries)
        return f"{name} {self.changes} {basis}: {self.conclusion}."

    @property
    def changes(self) -> str:
        """Say how much each metric changes: loses 0.128 of NDCG@10 (change −0.167 to −0.089)."""
        digits = 3 if self.margin >= 0.01 else 4
        changes = [_change(metric, loss.change, digits) for metric, loss in self.losses.items()]
        return ", ".join(changes) or "has no metric to compare"

    @property
    def conclusion(self) -> str:
        """Say what the changes show, and if they show nothing, what would."""
        margin = f"{self.margin:g}"
        if self.queries_that_count >= MIN_QUERIES and not self.has_skill:
            return f"{NO_SKILL}, so nothing is shown"
        if self.passed:
            return f"shown to lose less than {margin}"
        if any(loss.change.is_below(-self.margin) for loss in self.losses.values()):
            return f"it loses more than {margin}"
        if not self.tested and all(loss.excluded for loss in self.losses.values()):
            return "not tested, because a larger network failed"
        return f"not shown to lose less than {margin}{too_few(self.queries_that_count, self.margin)}"

    def as_json(self) -> Json:
        """Return the outcome as reports have it."""
        return {
            "passed": self.passed,
            "tested": self.tested,
            "better_than_chance": self.has_skill,
            "queries_that_count": self.queries_that_count,
            "loss": {
                name: {
                    "delta": loss.change.value,
                    "interval": loss.change.ends,
                    "bound": loss.bound,
                    "queries": loss.queries,
                    "queries_needed": loss.queries_needed,
                }
                for name, loss in self.losses.items()
            },
        }


NO_SKILL_ALONE = "the model is not shown to rank better than a random order"
NO_SKILL = "the model that it is compared with is not shown to rank better than a random order"
"""Why nothing is claimed of a model that has nothing to lose, and of another one against it."""


def on_queries(counted: int, queries: int) -> str:
    """Say on which queries a claim about an order rests. counted: those with titles of different grades."""
    if counted == queries:
        return f"on {queries:,} queries"
    return f"on {counted:,} queries with titles of different grades (of {queries:,})"


def too_few(queries: int, margin: float, level: float = ERROR_RATE) -> str:
    """Say that no outcome on so many queries could show a margin; empty if one could."""
    needed = minimum_queries(margin, level)
    if queries >= needed:
        return ""
    if queries < MIN_QUERIES:
        return f" (that takes at least {needed:,} such queries)"
    smallest = number(rounded(minimum_margin(queries, level), up=True, digits=2))
    return f" (that takes at least {needed:,} such queries; {queries:,} can show {smallest} at best)"


def _change(metric: str, change: Interval, digits: int) -> str:
    """Say what a metric loses or gains. The interval is that of the change, so a loss is negative in it."""
    smallest = 10**-digits
    if abs(change.value) < smallest / 2:
        said = f"changes {NAMES[metric]} by less than {fixed(smallest, digits)}"
    else:
        verb = "gains" if change.value > 0 else "loses"
        said = f"{verb} {fixed(abs(change.value), digits)} of {NAMES[metric]}"
    ends = ""
    if change.low == change.low:
        low = fixed(change.low, digits, sign=True)
        ends = f" (change {low} to {fixed(change.high, digits, sign=True)})"
    return said + ends


def largest(counts: Sequence[int | None]) -> int | None:
    """Return the largest count; None if one is not known."""
    known = [count for count in counts if count is not None]
    return max(known, default=None) if len(known) == len(counts) else None


def non_inferiority(
    first: Evaluation, before: MetricDraws, after: MetricDraws, counts: Floats, margin: float
) -> NonInferiority:
    """Test whether one model loses less than a margin against another one.

    first: the evaluation of the model that is compared with. before, after: the draws of both, on the same
    resamples. counts: these, (1 + resamples, clusters). A metric that one of them lacks is not tested.
    """
    losses = {
        name: loss_of(estimate_of(after[name] - before[name], counts), margin, queries=first.queries)
        for name in first.measures.tested
        if name in before and name in after
    }
    return NonInferiority(losses, skill_of(first, before, counts, list(losses)), margin, first.queries)


def skill_of(
    evaluation: Evaluation, draws: MetricDraws, counts: Floats, metrics: Sequence[str]
) -> dict[str, Interval]:
    """Return how far a model is above chance by each of the metrics that are tested."""
    skill: dict[str, Interval] = {}
    if "ndcg10" in metrics:
        skill["ndcg10"] = estimate_of(evaluation.over_random_order(counts), counts).interval()
    if "qwk" in metrics:
        skill["qwk"] = estimate_of(draws["qwk"], counts).interval()
    return skill


def fixed_sequence(tests: Sequence[NonInferiority]) -> list[NonInferiority]:
    """Test models in the order given and stop at the first that fails.

    The order was fixed before the held-out queries were looked at. Each test may therefore use the whole
    error rate, and the chance that any model worse than the margin passes is at most that rate (Maurer et al.
    1995). A bound exactly at −margin does not pass.
    """
    outcomes: list[NonInferiority] = []
    for test in tests:
        tested = all(earlier.passed for earlier in outcomes)
        outcomes.append(NonInferiority(test.losses, test.skill, test.margin, test.queries, tested=tested))
    return outcomes
