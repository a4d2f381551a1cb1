"""One run of `headroom study`: the model, the data and the settings that every kind is given, and how much it
computes: everything, or with `--quick` just enough for a rough answer."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from models.classifier import Classifier
from models.study.base import Judged, Progress, Silent
from models.study.runner import Runner


@dataclass(frozen=True)
class Effort:
    """The numbers of things that a study computes.

    pairs, holdout_pairs: how many pairs of either file are used, spread over the queries; None: all. A quick
    search holds out more than it searches on: enough queries for its test.
    resamples: those of each bootstrap. permutations: the draws of a permutation test over queries.
    fractions, draws: for `random`, the number of shares of heads off above 0, and of masks per share.
    role_pairs, role_sets: for `roles`, the pairs whose attention is scored, and the random sets for each
    comparison. compared_pairs: the pairs that `similarity` compares. shares, orders, rounds: for `search`,
    the shares of heads kept at which it makes masks, the random masks, and how often it times each thing.
    """

    pairs: int | None = None
    holdout_pairs: int | None = None
    resamples: int = 2_000
    permutations: int = 19_999
    fractions: int = 20
    draws: int = 20
    role_pairs: int = 400
    role_sets: int = 100
    compared_pairs: int = 100
    shares: tuple[float, ...] = tuple(round(1 - 0.05 * step, 2) for step in range(1, 20))
    orders: int = 20
    rounds: int = 7


FULL = Effort()

QUICK = Effort(
    pairs=250,
    holdout_pairs=800,
    resamples=400,
    permutations=1_999,
    fractions=10,
    draws=4,
    role_pairs=60,
    role_sets=10,
    compared_pairs=25,
    shares=(0.8, 0.6, 0.4, 0.3, 0.2),
    orders=5,
    rounds=3,
)

QUICK_ALL = replace(QUICK, pairs=120)
"""For `all`: every kind in the time of one or two."""

QUERY_TITLES = 4
"""Titles per query in a quick study: with fewer there is hardly an order to judge."""

ROUGH = (
    f"This is a rough answer (--quick): few pairs of each file, about {QUERY_TITLES} titles per "
    "query, and few draws. Intervals are wider and small effects are missed. Run the same command "
    "without --quick before you act on it."
)


@dataclass(frozen=True)
class Study:
    """The model, the data and the settings of one run.

    runner, holdout_runner: evaluate masks on `data` and on `holdout`. out: the directory that the report,
    masks and plots are written to. seed: seeds every random draw. margin: the largest fall of accuracy, QWK
    or NDCG@10 (absolute) that a mask may cost. model: the checkpoint as the user named it, None for the
    shipped one. effort: says how much is computed.
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
