"""Service-level objectives such as `p99=100ms,errors=0.1%`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadtest.errors import PlanError
from loadtest.histogram import Histogram
from loadtest.plan import Plan, seconds
from loadtest.recorder import Recorder

DEFAULT_ERRORS = 0.001


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits of latency percentiles (percent → milliseconds) and of the share of errors."""

    text: str
    limits_ms: dict[float, float]
    errors: float = DEFAULT_ERRORS

    @property
    def bound_ms(self) -> float:
        """Latency within which an answer counts as goodput: the limit of the highest percentile."""
        return self.limits_ms[max(self.limits_ms)]

    def missed(self, recorder: Recorder, latency: Histogram) -> list[str]:
        """Return why a run misses the objective; empty if it meets it."""
        reasons = []
        for percent, limit in sorted(self.limits_ms.items()):
            measured = latency.percentile_ms(percent)
            if measured is None:
                reasons.append(f"p{percent:g}: no request was answered")
            elif measured > limit:
                reasons.append(f"p{percent:g} was {measured:.1f} ms, over {limit:g} ms")
        failed = sum(recorder.errors.values())
        share = failed / recorder.scheduled if recorder.scheduled else 0.0
        if share > self.errors:
            reasons.append(f"{share:.2%} of the requests failed, over {self.errors:.2%}")
        return reasons

    def good(self, recorder: Recorder, latency: Histogram) -> int:
        """Return the number of requests answered without error and within the bound."""
        values, counts = latency.counts()
        return min(recorder.ok, int(counts[values <= self.bound_ms * 1.001].sum()))


def of_plan(plan: Plan) -> Objective | None:
    """Return the objective of the plan's `slo`; None without one.

    Raises:
        PlanError: it cannot be read, or a limit is above the timeout, so that no request could miss it.
    """
    if not plan.slo:
        return None
    objective = parse(plan.slo)
    for percent, limit in objective.limits_ms.items():
        if limit > plan.timeout * 1000:
            raise PlanError(
                f"slo: p{percent:g}={limit / 1000:g}s is above the timeout of {plan.timeout:g} s,"
                f" so no request could miss it: set it to at most {plan.timeout:g} s, or a longer --timeout"
            )
    return objective


def parse(text: str) -> Objective:
    """Return the objective of text such as `p99=100ms,errors=0.1%`. Raises PlanError."""
    limits: dict[float, float] = {}
    errors = DEFAULT_ERRORS
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        try:
            if name == "errors":
                errors = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
                if not 0 <= errors <= 1:
                    raise ValueError
            elif re.fullmatch(r"p\d{1,2}(\.\d+)?", name):
                if not value[-1:].isalpha():
                    raise PlanError(f"--slo: {item!r} has no unit; write {name}={value}ms or {name}={value}s")
                limits[float(name[1:])] = seconds(value) * 1000
            else:
                raise ValueError
        except ValueError:
            raise PlanError(f"--slo: {item!r} is not of the form p99=100ms or errors=0.1%") from None
    if not limits:
        raise PlanError("--slo: name at least one percentile, such as p99=100ms")
    return Objective(text, limits, errors)
