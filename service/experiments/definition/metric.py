"""A metric of an experiment, as a config declares it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]


class Metric(BaseModel):
    """A metric over units, computed from the values of their outcomes.

    kind: `mean` is the mean of the units' sums; `proportion` is the share of units with a sum above 0;
        `ratio` is the sum over all units divided by the sum of `denominator` (clicks over impressions).
    margin: a variant is good enough if it is worse by less than this. Without a margin, the question is only
        whether there is a difference. The margin is a share of control's value if `relative` is true, and
        otherwise in the metric's own unit.
    covariate: a metric whose values from before a unit's exposure explain some of the variance (CUPED). It
        may be this metric itself.
    winsorize: sums above this quantile of all units' sums count as that quantile.
    window_hours: outcomes count for so long after a unit's exposure, and a unit counts once this time is
        over.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: MetricName
    kind: Literal["mean", "proportion", "ratio"] = "mean"
    denominator: MetricName | None = None
    better: Literal["higher", "lower"] = "higher"
    margin: float | None = Field(None, gt=0, allow_inf_nan=False)
    relative: bool = True
    covariate: MetricName | None = None
    winsorize: float | None = Field(None, gt=0.5, lt=1)
    window_hours: float | None = Field(None, gt=0, le=24 * 365)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "ratio") != (self.denominator is not None):
            raise ValueError("denominator belongs to kind: ratio, and a ratio needs one")
        if self.denominator == self.name:
            raise ValueError("denominator must be another metric")
        if self.kind == "proportion" and self.winsorize is not None:
            raise ValueError("winsorize has no effect on a proportion: its values are 0 and 1")
        if self.relative and self.margin is not None and self.margin >= 1:
            raise ValueError("margin: a relative margin is a share of control's value, below 1 (0.02 is 2 %)")
        return self

    @property
    def sources(self) -> set[str]:
        """The names of the outcomes that the metric is computed from."""
        return {name for name in (self.name, self.denominator, self.covariate) if name is not None}

    @property
    def sign(self) -> int:
        """Return 1 if more is better, -1 if less is better."""
        return 1 if self.better == "higher" else -1
