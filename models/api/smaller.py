"""Pruned checkpoints from Python: `headroom.prune`."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.api.arguments import MIN_MINUTES, check_range, errors_name_arguments
from headroom.models.api.data import DIRECTORY, path_of, source_of, unjudged_source_of
from headroom.models.api.taught import Taught, summary, taught
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.files import bytes_of_weights, check_empty, new_directory
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.errors import ModelError
from headroom.models.frame import frame
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.labelled import Columns
from headroom.models.training.distil.job import DistilOptions, StudentSize

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.api.data import Data, UnjudgedData
    from headroom.models.classifier import Classifier, MaskForm


@dataclass(frozen=True)
class Pruned:
    """A checkpoint without what a mask switches off.

    path: its directory. mask: what was removed. sizes: the numbers of heads, units and layers and the bytes
    of the weights, before and after. transformers: why transformers does not load it; None if it does.
    recovery: what it learnt from the whole model afterwards; None if it was not taught.
    """

    path: Path
    mask: HeadMask
    sizes: dict[str, tuple[int, int]]
    transformers: str | None
    recovery: Taught | None = None

    def load(self, device: str = "auto", dtype: str = "auto") -> Classifier:
        """Return its classifier. device, dtype: "auto", or a name of torch's."""
        from headroom.models.classifier import Classifier

        return Classifier.load(self.path, device, dtype)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, a row each for heads, units, layers and bytes.

        Columns: part, before, after. Raises ModuleNotFoundError without pandas.
        """
        before = [old for old, _ in self.sizes.values()]
        after = [new for _, new in self.sizes.values()]
        return frame({"part": list(self.sizes), "before": before, "after": after})

    def __str__(self) -> str:
        sizes = dict(self.sizes)
        old, new = sizes.pop("bytes")
        parts = [f"{n:,} of {o:,} {name}" for name, (o, n) in sizes.items() if name == "heads" or n != o]
        text = f"{self.path}: {', '.join(parts)}, {new / 1e6:.1f} MB of {old / 1e6:.1f} MB"
        if self.transformers is not None:
            text += f"\nheadroom loads it; transformers does not: {self.transformers}"
        return text if self.recovery is None else f"{text}\n{summary(self.recovery.metrics)}"

    __repr__ = __str__


@errors_name_arguments(recover="recover_minutes")
def prune(
    clf: Classifier,
    mask: MaskForm,
    out: str | PathLike[str],
    *,
    recover_minutes: float | None = None,
    data: UnjudgedData | None = None,
    test: Data | None = None,
    query: str = "query",
    title: str = "title",
    grade: str = "grade",
    seed: int = 0,
) -> Pruned:
    """Write a checkpoint without the heads, units and layers that a mask switches off.

    It scores as the classifier does with the mask, unless it is taught afterwards. Its layers are numbered
    from 0. out: an empty or new directory. recover_minutes: of training on the whole model's scores, as
    `distil` trains; it needs data, and only it takes what follows. data: pairs, judged or not, to train on.
    test: judged pairs. query, title, grade: the names of their columns. seed: of every random draw.
    Raises InvalidMask for a wrong mask; ModelError if no head would be left, for wrong data, or if `out` is
    not empty.

    >>> smaller = prune(clf, "@pruned20", directory / "smaller")
    >>> smaller.sizes["heads"]
    (144, 115)
    """
    if clf.directory is None:
        raise ModelError("prune needs a classifier that was loaded from a directory or the hub")
    check_range("recover_minutes", recover_minutes, MIN_MINUTES)
    check_range("seed", seed, 0, whole=True)
    if (recover_minutes is None) != (data is None):
        raise ModelError("recover_minutes and data: give both or none")
    if recover_minutes is None and test is not None:
        raise ModelError("test: it needs recover_minutes")
    weights = clf.named_mask("mask", mask)
    clf.config.check_head_left(weights)
    directory = path_of("out", out, DIRECTORY)
    if recover_minutes is None or data is None:
        return pruned(clf.directory, clf.config, weights, directory)
    columns = Columns(query, title, grade)
    recovery = taught(
        DistilOptions(
            data=unjudged_source_of(data, columns),
            out=directory,
            teacher=str(clf.directory),
            model=str(clf.directory),
            cut=StudentSize(mask=weights.to_json()),
            test=None if test is None else source_of(test, columns, "test"),
            minutes=recover_minutes,
            seed=seed,
            columns=columns,
            teacher_labels=clf.config.labels,
        )
    )
    return _described(clf.directory, clf.config, directory, read_config(directory), weights, recovery)


def pruned(source: Path, config: ModelConfig, mask: HeadMask, out: Path) -> Pruned:
    """Prune the checkpoint in a directory, which has this config. mask: it leaves a head."""
    check_empty(out)

    from headroom.models.compress.prune import prune  # imports torch

    with new_directory(out) as draft:
        smaller = prune(source, draft, mask, config)
    return _described(source, config, out, smaller, mask)


def _described(
    source: Path,
    config: ModelConfig,
    out: Path,
    smaller: ModelConfig,
    mask: HeadMask,
    recovery: Taught | None = None,
) -> Pruned:
    """Return what was pruned. source, config: the checkpoint before; out, smaller: after."""
    from headroom.models.compress.prune import transformers_refusal  # imports torch

    sizes = {
        "heads": (sum(map(len, config.kept_heads)), sum(map(len, smaller.kept_heads))),
        "units": (sum(config.widths), sum(smaller.widths)),
        "layers": (config.num_layers, smaller.num_layers),
        "bytes": (bytes_of_weights(source), bytes_of_weights(out)),
    }
    return Pruned(out, mask, sizes, transformers_refusal(smaller), recovery)
