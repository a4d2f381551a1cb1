"""The model, mask and columns that a job scores its pairs with: values that go to any process."""

from collections.abc import Iterable
from dataclasses import dataclass

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import Columns
from headroom.service.config.settings import LiveConfig
from headroom.service.config.variants import MaskForm

GRADED = ("score", "grade", "label", "expected_grade", "probabilities", "truncated")
UNGRADED = ("score", "truncated")


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The model, variant, mask and columns of a job.

    model: a checkpoint's directory or hub id, or None for the shipped one. live: the variant, its default,
    and stored masks. mask: laid on the variant; it may switch units off. graded: whether there are grades.
    prefix: begins the names of the new columns. label_order: of the model's labels, from least to most
    relevant; None: as it says. deterministic: float32 scores that are the same bits in any batch.
    """

    model: str | None
    live: LiveConfig
    mask: MaskForm | None
    fields: Columns
    graded: bool
    device: str = "auto"
    dtype: str = "auto"
    prefix: str = ""
    label_order: tuple[str, ...] | None = None
    deterministic: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        """Return the input's columns of queries and of titles."""
        return self.fields.query, self.fields.title

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of the new columns, without the prefix."""
        return GRADED if self.graded else UNGRADED

    @property
    def names(self) -> list[str]:
        """Return the names of the new columns, in order."""
        return [f"{self.prefix}{kind}" for kind in self.kinds]

    def check_names(self, file: str, names: Iterable[str]) -> None:
        """Raise ModelError if the output would have two columns of one name."""
        taken = sorted(set(names) & set(self.names))
        if taken:
            raise ModelError(
                f"{file} already has a column {taken[0]!r}; give the new columns other names with --prefix, "
                "such as --prefix model_"
            )
