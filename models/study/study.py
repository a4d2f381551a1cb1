"""One run of `headroom study`: the model, the data and the settings that every kind is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from models.classifier import Classifier
from models.study.base import Judged, Progress, Silent
from models.study.effort import FULL, Effort
from models.study.runner import Runner


@dataclass(frozen=True)
class Study:
    """The model, the data and the settings of one run.

    runner, holdout_runner: evaluate masks on `data` and on `holdout`. out: the directory that the report,
    masks and plots are written to. seed: seeds every random draw. resamples: the number of resamples of
    each bootstrap. margin: the largest fall of accuracy, QWK or NDCG@10 (absolute) that a mask may cost.
    model: the checkpoint as the user named it, None for the shipped one. effort: says how much is computed.
    what, speedup, recover_minutes: for `search`, which parts may go (heads, units, layers), how many times
    as fast the network is to be, and how long it is trained afterwards.
    """

    classifier: Classifier
    data: Judged
    runner: Runner
    out: Path
    holdout: Judged | None = None
    holdout_runner: Runner | None = None
    seed: int = 0
    resamples: int = 2000
    margin: float = 0.02
    model: str | None = None
    what: tuple[str, ...] = ("heads",)
    speedup: float | None = None
    recover_minutes: float = 0
    progress: Progress = field(default_factory=Silent)
    effort: Effort = FULL

    @property
    def shape(self) -> tuple[int, int]:
        """Return (layers, heads) of the model before pruning; masks have this shape."""
        return self.classifier.num_layers, self.classifier.num_heads

    @property
    def by_time(self) -> bool:
        """Return whether `search` minimises time, not the number of heads."""
        return self.what != ("heads",) or self.speedup is not None
