"""The models, masks and columns that a job scores its pairs with: values that go to any process."""

from collections.abc import Iterable
from dataclasses import dataclass

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import Columns
from headroom.service.config.settings import LiveConfig
from headroom.service.config.variants import MaskForm

GRADED = ("score", "grade", "label", "expected_grade", "probabilities", "truncated")
UNGRADED = ("score", "truncated")

JUDGMENTS = ("query", "docid", "rating")
"""The columns of a judgment list, as Quepid and OpenSearch's Search Relevance Workbench import it."""


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """The variant and mask of a set of output columns. suffix: ends their names, "" if there is one set only.

    variant, mask: None if not given. The mask may switch units off.
    """

    suffix: str = ""
    variant: str | None = None
    mask: MaskForm | None = None


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """All that pairs are scored with, as a value that goes to any process.

    model: a checkpoint's directory or hub id, or None for the shipped one. live: variants and masks.
    graded: whether there are grades. prefix: begins the names of the new columns. judged_ids: if the output
    is a judgment list, the column of its ids, else "". label_order: of the model's labels, from least to most
    relevant; None: as it says.
    """

    model: str | None
    live: LiveConfig
    columns: tuple[ColumnSet, ...]
    fields: Columns
    graded: bool
    overflow: str = "truncate"
    device: str = "auto"
    dtype: str = "auto"
    prefix: str = ""
    judged_ids: str = ""
    label_order: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, str]:
        """Return the input's columns of queries and of titles."""
        return self.fields.query, self.fields.title

    @property
    def others(self) -> tuple[str, ...]:
        """Return the other columns that the input must have."""
        return (self.judged_ids,) if self.judged_ids else ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of one set of new columns, without prefix and suffix."""
        if self.judged_ids:
            return ("grade",) if self.graded else ("score",)
        kinds = GRADED if self.graded else UNGRADED
        return (*kinds, "chunk") if self.overflow == "chunks" else kinds

    @property
    def names(self) -> list[str]:
        """Return the names of all new columns, in order."""
        if self.judged_ids:
            return [JUDGMENTS[-1]]
        suffixes = [f"[{column.suffix}]" if column.suffix else "" for column in self.columns]
        return [f"{self.prefix}{kind}{suffix}" for suffix in suffixes for kind in self.kinds]

    def check_names(self, file: str, names: Iterable[str]) -> None:
        """Raise ModelError if the output would have two columns of one name."""
        if self.judged_ids:
            return
        taken = sorted(set(names) & set(self.names))
        if taken:
            raise ModelError(
                f"{file} already has a column {taken[0]!r}; give the new columns other names with --prefix, "
                "such as --prefix model_"
            )
