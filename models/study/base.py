"""What every study is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.quality.labelled import LabelledPair
from models.study.effort import FULL, Effort

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from models.study.runner import Runner

Matrix = NDArray[np.float32]
"""Head weights (layers, heads): 1 keeps a head, 0 removes it; scales above 1 are allowed here."""


@dataclass(frozen=True)
class Judged:
    """n graded query–title pairs, and which query each belongs to.

    pairs: (query, title) of each. grade: (n,) int64 from 0. query_of: (n,) int64, numbered in order of first
    appearance. queries: their texts. source: where they came from, as the report names it.
    note: what was left out when the file was read, "" if nothing.
    """

    pairs: tuple[tuple[str, str], ...]
    grade: NDArray[np.int64]
    query_of: NDArray[np.int64]
    queries: tuple[str, ...]
    source: str
    note: str = ""

    @classmethod
    def of(cls, labelled: Sequence[LabelledPair], source: str, note: str = "") -> Judged:
        """Labelled pairs, their queries numbered as they appear; source and note: for the report."""
        numbers: dict[str, int] = {}
        query_of = np.array([numbers.setdefault(pair.query, len(numbers)) for pair in labelled], np.int64)
        return cls(
            tuple((pair.query, pair.title) for pair in labelled),
            np.array([pair.grade for pair in labelled], np.int64),
            query_of,
            tuple(numbers),
            source,
            note,
        )

    def __len__(self) -> int:
        return len(self.pairs)


class Progress(Protocol):
    """Where a study says how far it is."""

    def start(self, what: str, total: int) -> None:
        """A new piece of work of `total` steps begins; the one before it is done."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of it are done."""


class Silent:
    """Progress that nobody watches."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, steps: int = 1) -> None: ...


@dataclass(frozen=True)
class Study:
    """One run of `headroom study`.

    runner, holdout_runner: evaluate masks on `data` and on `holdout`; see models.study.runner.Runner.
    out: the directory of the report; masks and plots go there too. seed: of everything drawn at random.
    resamples: of each bootstrap. margin: how much worse (absolute, in accuracy, QWK and NDCG@10) still
    counts as "no loss". model: the checkpoint as the user named it, None for the shipped one.
    peer: a second classifier, trained from another seed, for `similarity`. effort: how much is computed.
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
    peer: Classifier | None = None
    progress: Progress = field(default_factory=Silent)
    effort: Effort = FULL

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads) of the model before pruning; masks have this shape."""
        return self.classifier.num_layers, self.classifier.num_heads


@dataclass(frozen=True)
class Table:
    """A table of the report; cells are plain text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A plot of the report, written as plots/NAME.png and plots/NAME.svg.

    draw: makes the matplotlib figure (with matplotlib.figure.Figure or plots.figure, never pyplot's global
    state).
    caption: one or two sentences that say what is seen; alt: the same for somebody who does not see it.
    """

    name: str
    caption: str
    draw: Callable[[], Drawing]
    alt: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report: paragraphs of plain text (no markup), then tables, then figures."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A published claim beside what this run found: one row of the table in `all`.

    published: the source study's figure, or "–". ours: figure with interval. replicates: None where this run
    cannot tell. reason: one sentence that follows from the numbers. fact: what the claim comes to; claims of
    the same fact count once. verdict: one of models.study.claims.VERDICTS, filled in there.
    """

    claim: str
    published: str
    ours: str
    replicates: bool | None
    reason: str
    fact: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Result:
    """What a study found.

    json: merged into report.json beside schema, kind, model and baseline (CONTRACT §5); plain Python values.
    conclusion: one paragraph made from the numbers. files: other files for the report's directory, name →
    text.
    """

    kind: str
    json: Mapping[str, Any]
    conclusion: str
    sections: tuple[Section, ...] = ()
    findings: tuple[Finding, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
